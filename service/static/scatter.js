// Samples as points. All scatter plots of a view share one range, so that they can be compared by eye.
import { colours, fit, ticks } from "./canvas.js";

const MARGIN = { left: 38, right: 10, top: 10, bottom: 26 };
const MOST_TRAILS = 300;

/** Two numbers of a state: its first two; a single number is set against its place in the request. */
export const point = (state, index, count) => {
  const flat = state.length === 1 ? [state[0], count > 1 ? index / (count - 1) : 0] : state;
  return flat;
};

/** The square range that holds all states of the given lists; null rows are samples that failed. */
export function range(lists) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const states of lists) {
    states.forEach((state, index) => {
      if (state === null) return;
      const [x, y] = point(state, index, states.length);
      if (x < x0) x0 = x;
      if (x > x1) x1 = x;
      if (y < y0) y0 = y;
      if (y > y1) y1 = y;
    });
  }
  if (x0 > x1) return { x: [-1, 1], y: [-1, 1] };
  const half = (Math.max(x1 - x0, y1 - y0) / 2 || 1) * 1.06;
  const [mx, my] = [(x0 + x1) / 2, (y0 + y1) / 2];
  return { x: [mx - half, mx + half], y: [my - half, my + half] };
}

/**
 * Draw layers of points.
 * @param layers [{states, side, trails?}]: states (n, 2 or more) with null rows; trails is a list of earlier states.
 * @param links draw a line from each point of the first layer to its partner of the second
 */
export function draw(canvas, layers, bounds, links = false) {
  const size = Math.min(canvas.clientWidth, 520);
  const { pen, width, height } = fit(canvas, size);
  const paint = colours();
  const side = Math.min(width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom);
  const left = MARGIN.left + (width - MARGIN.left - MARGIN.right - side) / 2;
  const toX = (x) => left + ((x - bounds.x[0]) / (bounds.x[1] - bounds.x[0])) * side;
  const toY = (y) => MARGIN.top + (1 - (y - bounds.y[0]) / (bounds.y[1] - bounds.y[0])) * side;
  axes(pen, paint, bounds, { left, side, toX, toY });
  pen.save();
  pen.beginPath();
  pen.rect(left, MARGIN.top, side, side);
  pen.clip();
  if (links && layers.length === 2) join(pen, paint, layers, toX, toY);
  for (const layer of layers) {
    if (layer.trails) trails(pen, paint[layer.side], layer, toX, toY);
    dots(pen, paint[layer.side], layer.states, toX, toY);
  }
  pen.restore();
}

function axes(pen, paint, bounds, { left, side, toX, toY }) {
  pen.font = "11px system-ui, sans-serif";
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
    pen.fillText(y, left - 6, toY(y));
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const x of ticks(...bounds.x)) {
    pen.beginPath();
    pen.moveTo(toX(x), MARGIN.top);
    pen.lineTo(toX(x), MARGIN.top + side);
    pen.stroke();
    pen.fillText(x, toX(x), MARGIN.top + side + 7);
  }
}

function dots(pen, colour, states, toX, toY) {
  const radius = states.length > 4000 ? 1.1 : states.length > 1000 ? 1.6 : 2.4;
  pen.fillStyle = colour;
  pen.globalAlpha = states.length > 4000 ? 0.35 : states.length > 1000 ? 0.55 : 0.75;
  states.forEach((state, index) => {
    if (state === null) return;
    const [x, y] = point(state, index, states.length);
    pen.beginPath();
    pen.arc(toX(x), toY(y), radius, 0, 7);
    pen.fill();
  });
  pen.globalAlpha = 1;
}

function join(pen, paint, [first, second], toX, toY) {
  pen.strokeStyle = paint.quiet;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  first.states.forEach((state, index) => {
    const other = second.states[index];
    if (state === null || !other) return;
    pen.moveTo(...[toX, toY].map((to, k) => to(point(state, index, first.states.length)[k])));
    pen.lineTo(...[toX, toY].map((to, k) => to(point(other, index, first.states.length)[k])));
  });
  pen.stroke();
  pen.globalAlpha = 1;
}

function trails(pen, colour, { states, trails: past }, toX, toY) {
  const count = Math.min(states.length, MOST_TRAILS);
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.22;
  pen.beginPath();
  for (let index = 0; index < count; index++) {
    let begun = false;
    for (const frame of [...past, states]) {
      if (!frame[index]) continue;
      const [x, y] = point(frame[index], index, states.length);
      if (begun) pen.lineTo(toX(x), toY(y));
      else pen.moveTo(toX(x), toY(y));
      begun = true;
    }
  }
  pen.stroke();
  pen.globalAlpha = 1;
}
