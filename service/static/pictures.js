// Samples as a sheet of pictures: data of shape (height, width), (height, width, 3) or (3, height, width).
import { fit } from "./canvas.js";

const MOST = 400;
const GAP = 3;

/** Read what a shape is as pictures, or null where it is none. */
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

/** The lowest and highest value of all states, so that a sheet uses one scale; 0 to 1 where they lie within it. */
export function scale(lists) {
  let [low, high] = [0, 0];
  const visit = (value) => {
    if (Array.isArray(value)) value.forEach(visit);
    else if (value < low) low = value;
    else if (value > high) high = value;
  };
  lists.forEach((states) => states.forEach((state) => state !== null && visit(state)));
  if (low >= -1e-6 && high <= 1 + 1e-6) return [0, 1];
  return high > low ? [low, high] : [low, low + 1];
}

export function draw(canvas, states, shape, [low, high]) {
  const layout = layoutOf(shape);
  const shown = states.slice(0, MOST);
  const columns = Math.ceil(Math.sqrt(shown.length));
  const rows = Math.ceil(shown.length / columns);
  const cell = Math.min(canvas.clientWidth, 520) / columns;
  const { pen, width } = fit(canvas, Math.max(rows * cell * (layout.height / layout.width), 40));
  const left = (width - cell * columns) / 2;
  const small = new OffscreenCanvas(layout.width, layout.height);
  const brush = small.getContext("2d");
  const image = brush.createImageData(layout.width, layout.height);
  pen.imageSmoothingEnabled = false;
  shown.forEach((state, index) => {
    if (state === null) return;
    for (let y = 0, at = 0; y < layout.height; y++) {
      for (let x = 0; x < layout.width; x++) {
        for (const value of layout.pixel(state, y, x)) image.data[at++] = (255 * (value - low)) / (high - low);
        image.data[at++] = 255;
      }
    }
    brush.putImageData(image, 0, 0);
    const [x, y] = [left + (index % columns) * cell, Math.floor(index / columns) * cell * (layout.height / layout.width)];
    const side = cell - Math.min(GAP, cell / 8);
    pen.drawImage(small, x, y, side, side * (layout.height / layout.width));
  });
  return shown.length;
}
