// Samples as points. All scatter plots of a view share one range, so that they can be compared by eye.
import { colours, figureSide, fit, tickText, ticks } from "./canvas.js";

const MARGIN = { right: 14, top: 10, bottom: 26 };
const TITLE = 18; // pixels for the name of an axis
const FONT = "11px system-ui, sans-serif";
const ALIKE = 4; // extents of x and y within this factor share one scale, if they have no names
const MOST_TRAILS = 300;
const REACH = 24; // pixels within which a click finds a point

/** Two numbers of a state; a single number is plotted against its place in the request. @param axes the places of the two */
const point = (state, index, count, [x, y]) => (state.length === 1 ? [state[0], count > 1 ? index / (count - 1) : 0] : [state[x], state[y]]);

/** The least and greatest x and y of states; for states on the way, of nearly all of them. Null rows failed. */
export function extent(states, onTheWay, axes) {
  return [0, 1].map((axis) => {
    const values = states.flatMap((state, index) => (state ? [point(state, index, states.length, axes)[axis]] : []));
    if (!onTheWay) return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const few = Math.floor(values.length / 50);
    values.sort((p, q) => p - q);
    return values.length ? [values[few], values[values.length - 1 - few]] : [Infinity, -Infinity];
  });
}

/** The range around the extents of x and y: each its own if they have names or differ much, else a square. */
export function range([x, y], named) {
  if (x[0] > x[1]) return { x: [-3, 3], y: [-3, 3] };
  const sizes = [x, y].map(([low, high]) => high - low);
  const most = Math.max(...sizes);
  const own = named || Math.min(...sizes) * ALIKE < most;
  const around = ([low, high], size) => {
    const half = ((own ? size : most) / 2 || Math.abs(low) / 2 || 1) * 1.06;
    return [(low + high) / 2 - half, (low + high) / 2 + half];
  };
  return { x: around(x, sizes[0]), y: around(y, sizes[1]) };
}

/**
 * @typedef {object} Layer
 * @property {"a" | "b"} side
 * @property {(number[] | null)[]} states (n, 2 or more), null where a sample failed
 * @property {(number[] | null)[][]} [trails] earlier states
 * @property {((index: number) => string | null)} [colour] of a point, instead of the solver's
 * @property {{path: number[][], steps: number[][], fan: number[][][]}} [path] of the chosen sample, where its steps end,
 *   and other paths from the same noise
 */

/**
 * Draw layers of points, and keep with the canvas the data that a click on it needs.
 * @param {Layer[]} layers
 * @param {object} options `links` joins each point of the first layer to its partner of the second; `selected` is the
 *   index of the chosen sample or null; `under` draws the background of the points; `real` are states of real data;
 *   `axes` are the places of two numbers of a state, and `names` what they are called, if anything
 */
export function draw(canvas, layers, bounds, { links = false, selected = null, under = null, real = [], axes: places, names = [] } = {}) {
  const { pen, width, height } = fit(canvas, figureSide(canvas.clientWidth));
  const paint = colours();
  pen.font = FONT;
  const title = names.length ? TITLE : 0;
  const room = Math.max(...ticks(...bounds.y).map((value) => pen.measureText(tickText(value)).width)) + 12 + title;
  const side = Math.min(width - room - MARGIN.right, height - MARGIN.top - MARGIN.bottom - title);
  const left = room + (width - room - MARGIN.right - side) / 2;
  const toX = (x) => left + ((x - bounds.x[0]) / (bounds.x[1] - bounds.x[0])) * side;
  const toY = (y) => MARGIN.top + (1 - (y - bounds.y[0]) / (bounds.y[1] - bounds.y[0])) * side;
  const to = (state, index, count) => {
    const [x, y] = point(state, index, count, places);
    return [toX(x), toY(y)];
  };
  canvas.places = layers.map(({ states }) => states.map((state, index) => state && to(state, index, states.length)));
  axes(pen, paint, bounds, { left, side, toX, toY, names, room });
  pen.save();
  pen.beginPath();
  pen.rect(left, MARGIN.top, side, side);
  pen.clip();
  under?.(pen, paint, toX, toY);
  if (real.length) dots(pen, paint.heat, real.map((state, index) => to(state, index, real.length)), null, 1.5);
  if (links && layers.length === 2) join(pen, paint, canvas.places);
  layers.forEach((layer, k) => {
    if (layer.trails) trails(pen, paint[layer.side], layer, to);
    dots(pen, paint[layer.side], canvas.places[k], layer.colour);
    if (layer.path) path(pen, paint, layer, to);
    if (selected !== null) ring(pen, paint, canvas.places[k][selected]);
  });
  pen.restore();
}

/** The index of the sample nearest to a place of the canvas, or null. */
export function nearest(canvas, x, y) {
  let [closest, least] = [null, REACH ** 2];
  for (const places of canvas.places ?? []) {
    places.forEach((place, index) => {
      const away = place ? (place[0] - x) ** 2 + (place[1] - y) ** 2 : Infinity;
      if (away < least) [closest, least] = [index, away];
    });
  }
  return closest;
}

function axes(pen, paint, bounds, { left, side, toX, toY, names, room }) {
  pen.strokeStyle = paint.line;
  pen.fillStyle = paint.quiet;
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const y of ticks(...bounds.y)) {
    pen.beginPath();
    pen.moveTo(left, toY(y));
    pen.lineTo(left + side, toY(y));
    pen.stroke();
    pen.fillText(tickText(y), left - 6, toY(y));
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const x of ticks(...bounds.x)) {
    pen.beginPath();
    pen.moveTo(toX(x), MARGIN.top);
    pen.lineTo(toX(x), MARGIN.top + side);
    pen.stroke();
    pen.fillText(tickText(x), toX(x), MARGIN.top + side + 7);
  }
  if (!names.length) return;
  pen.fillStyle = paint.text;
  pen.fillText(names[0], left + side / 2, MARGIN.top + side + 7 + TITLE, side);
  pen.save();
  pen.translate(left - room + 2, MARGIN.top + side / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(names[1], 0, 0, side);
  pen.restore();
}

function dots(pen, usual, places, colour, more = 0) {
  const many = places.length;
  const radius = more + (many > 4000 ? 1.1 : many > 1000 ? 1.6 : many > 300 ? 2 : 2.4);
  pen.globalAlpha = many > 4000 ? 0.35 : many > 1000 ? 0.55 : 0.75;
  pen.fillStyle = usual;
  places.forEach((place, index) => {
    if (!place) return;
    if (colour) pen.fillStyle = colour(index) ?? usual;
    if (many > 2000) return pen.fillRect(place[0] - radius, place[1] - radius, 2 * radius, 2 * radius); // ten times as fast
    pen.beginPath();
    pen.arc(...place, radius, 0, 7);
    pen.fill();
  });
  pen.globalAlpha = 1;
}

function join(pen, paint, [first, second]) {
  pen.strokeStyle = paint.quiet;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  first.forEach((place, index) => {
    if (!place || !second[index]) return;
    pen.moveTo(...place);
    pen.lineTo(...second[index]);
  });
  pen.stroke();
  pen.globalAlpha = 1;
}

function ring(pen, paint, place) {
  if (!place) return;
  pen.strokeStyle = paint.text;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(...place, 7, 0, 7);
  pen.stroke();
  pen.lineWidth = 1;
}

/** The path of the chosen sample: a line, and a mark where each step ends; thin lines from the same noise. */
function path(pen, paint, { side, path: { path: way, steps, fan }, states }, to) {
  const line = (path) => {
    pen.beginPath();
    path.filter(Boolean).forEach((state, k) => pen[k ? "lineTo" : "moveTo"](...to(state, 0, states.length)));
    pen.stroke();
  };
  pen.strokeStyle = paint[side];
  pen.globalAlpha = 0.4;
  fan.forEach(line);
  pen.globalAlpha = 1;
  pen.lineWidth = 2.2;
  line(way);
  pen.lineWidth = 1.4;
  pen.fillStyle = paint.card;
  for (const state of steps) {
    const [x, y] = to(state, 0, states.length);
    pen.beginPath();
    if (side === "a") pen.arc(x, y, 3.4, 0, 7);
    else pen.rect(x - 3, y - 3, 6, 6);
    pen.fill();
    pen.stroke();
  }
  pen.lineWidth = 1;
}

function trails(pen, colour, { states, trails: past }, to) {
  const count = Math.min(states.length, MOST_TRAILS);
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.22;
  pen.beginPath();
  for (let index = 0; index < count; index++) {
    let begun = false;
    for (const frame of [...past, states]) {
      if (!frame[index]) continue;
      pen[begun ? "lineTo" : "moveTo"](...to(frame[index], index, states.length));
      begun = true;
    }
  }
  pen.stroke();
  pen.globalAlpha = 1;
}
