// Samples as a sheet of pictures: data of shape (height, width), (height, width, 3) or (3, height, width).
import { colours, figureSide, fit } from "./canvas.js";

const MOST = 400;
const GAP = 3;

/** How a shape is read as pictures, or null if it is none. */
export function layoutOf(shape) {
  if (shape.length === 2) return { height: shape[0], width: shape[1], pixel: (s, y, x) => [s[y][x], s[y][x], s[y][x]] };
  if (shape.length !== 3) return null;
  const [p, q, r] = shape;
  if (r === 3) return { height: p, width: q, pixel: (s, y, x) => s[y][x] };
  if (r === 1) return { height: p, width: q, pixel: (s, y, x) => [s[y][x][0], s[y][x][0], s[y][x][0]] };
  if (p === 3) return { height: q, width: r, pixel: (s, y, x) => [s[0][y][x], s[1][y][x], s[2][y][x]] };
  if (p === 1) return { height: q, width: r, pixel: (s, y, x) => [s[0][y][x], s[0][y][x], s[0][y][x]] };
  return null;
}

/** The least and greatest value of states, as a list of one pair; null rows failed. */
export function extent(states) {
  let [low, high] = [0, 0];
  const visit = (value) => {
    if (Array.isArray(value)) value.forEach(visit);
    else if (value < low) low = value;
    else if (value > high) high = value;
  };
  states.forEach((state) => state !== null && visit(state));
  return [[low, high]];
}

/** The scale of grey for an extent: 0 to 1 if all values are within it. */
export function scale([[low, high]]) {
  if (low >= -1e-6 && high <= 1 + 1e-6) return [0, 1];
  return high > low ? [low, high] : [low, low + 1];
}

/** Differences of pictures, and the scale on which no difference is the middle grey. */
export function differences(first, second) {
  const minus = (p, q) => (Array.isArray(p) ? p.map((value, k) => minus(value, q[k])) : p - q);
  const states = first.slice(0, second.length).map((p, k) => (p === null || second[k] === null ? null : minus(p, second[k])));
  let most = 0;
  for (const state of states) for (const value of state?.flat(Infinity) ?? []) most = Math.max(most, Math.abs(value));
  return { states, scale: [-most || -1, most || 1], most };
}

/**
 * Draw a sheet, and keep with the canvas the data that a click on it needs.
 * @param options `selected` is the index of the chosen sample or null; `frame(index)` is the colour of a picture's frame
 */
export function draw(canvas, states, shape, [low, high], { selected = null, frame = () => null } = {}) {
  const layout = layoutOf(shape);
  const shown = states.slice(0, MOST);
  const columns = Math.ceil(Math.sqrt(shown.length)) || 1;
  const rows = Math.ceil(shown.length / columns);
  const aspect = layout.height / layout.width;
  const cell = figureSide(canvas.clientWidth) / columns / Math.max(1, aspect);
  const { pen, width } = fit(canvas, Math.max(rows * cell * aspect, 40));
  const left = (width - cell * columns) / 2;
  const small = new OffscreenCanvas(layout.width, layout.height);
  const brush = small.getContext("2d");
  const image = brush.createImageData(layout.width, layout.height);
  const paint = colours();
  pen.imageSmoothingEnabled = false;
  canvas.sheet = { left, cell, columns, tall: cell * aspect, count: shown.length };
  shown.forEach((state, index) => {
    if (state === null) return;
    for (let y = 0, at = 0; y < layout.height; y++) {
      for (let x = 0; x < layout.width; x++) {
        for (const value of layout.pixel(state, y, x)) image.data[at++] = (255 * (value - low)) / (high - low);
        image.data[at++] = 255;
      }
    }
    brush.putImageData(image, 0, 0);
    const [x, y] = [left + (index % columns) * cell, Math.floor(index / columns) * cell * aspect];
    const side = cell - Math.min(GAP, cell / 8);
    pen.drawImage(small, x, y, side, side * aspect);
    const colour = index === selected ? paint.a : frame(index);
    if (!colour) return;
    pen.strokeStyle = colour;
    pen.lineWidth = index === selected ? 3 : 2;
    pen.strokeRect(x + 1, y + 1, side - 2, side * aspect - 2);
  });
}

/** The index of the picture at a place of the canvas, or null. */
export function at(canvas, x, y) {
  const { left, cell, columns, tall, count } = canvas.sheet ?? {};
  const [column, row] = [Math.floor((x - left) / cell), Math.floor(y / tall)];
  const index = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && index < count ? index : null;
}
