// Charts as SVG, in the colours of the page: lines of steps, bands, and points that can be clicked.
import { ticks } from "./canvas.js";
import { make } from "./dom.js";

const MARGIN = { left: 58, right: 14, top: 10, bottom: 42 };

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Round numbers on a logarithmic axis: 1, 2 and 5 of each power of ten, or the powers alone where they would be many. */
function logTicks(low, high) {
  const digits = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, k) => first + k);
  const values = powers.flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)));
  return values.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
}

const shown = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value));

/** The places of an axis in pixels. @param {{log?: boolean, range: [number, number]}} axis */
function placing({ log, range: [low, high] }, from, to) {
  const at = log ? Math.log10 : (value) => value;
  return (value) => from + ((at(value) - at(low)) / (at(high) - at(low) || 1)) * (to - from);
}

function mark(symbol, x, y, size, colour) {
  const r = size / 2;
  if (symbol === "x") return svg("path", { d: `M${x - r},${y - r}l${size},${size}m0,${-size}l${-size},${size}`, stroke: colour, "stroke-width": 2.5 });
  if (symbol === "square") return svg("rect", { x: x - r, y: y - r, width: size, height: size, fill: colour });
  return svg("circle", { cx: x, cy: y, r, fill: colour });
}

/** The line, band or points of a series. */
function drawn(series, toX, toY) {
  const { x, y, low, colour, kind } = series;
  const group = svg("g", { "data-series": series.name ?? "" });
  const points = (values) => x.map((value, k) => `${toX(value)},${toY(values[k])}`);
  if (kind === "band") {
    group.append(svg("polygon", { points: [...points(y), ...points(low).reverse()].join(" "), fill: colour, "fill-opacity": 0.17 }));
    return group;
  }
  if (kind === "steps") {
    const corners = x.map((value, k) => (k ? `H${toX(value)}V${toY(y[k])}` : `M${toX(value)},${toY(y[0])}`));
    group.append(svg("path", { d: corners.join(""), fill: "none", stroke: colour, "stroke-width": 2 }));
  }
  const marked = kind === "steps" ? x.length - 1 : x.length; // the end of a line of steps is no step
  for (let k = 0; k < marked; k++) {
    const [cx, cy, size] = [toX(x[k]), toY(y[k]), series.sizes?.[k] ?? series.size ?? 6];
    const point = svg("g", {}, mark(series.symbol, cx, cy, size, series.colours?.[k] ?? colour), svg("title", {}, series.hover(k)));
    if (series.texts?.[k]) {
      const below = series.below?.[k];
      point.append(svg("text", { x: cx, y: cy + (below ? size / 2 + 14 : -size / 2 - 5), "text-anchor": "middle" }, series.texts[k]));
    }
    if (series.pick) {
      point.style.cursor = "pointer";
      point.addEventListener("click", () => series.pick(k));
    }
    group.append(point);
  }
  return group;
}

/** The grid, numbers and title of an axis. */
function axisLines(axis, place, vertical, { width, height }) {
  const group = svg("g");
  const bottom = height - MARGIN.bottom;
  for (const value of axis.log ? logTicks(...axis.range) : ticks(...axis.range)) {
    const at = place(value);
    const [line, text] = vertical
      ? [{ x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }, { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }]
      : [{ x1: at, x2: at, y1: MARGIN.top, y2: bottom }, { x: at, y: bottom + 16, "text-anchor": "middle" }];
    group.append(svg("line", { ...line, class: "grid" }), svg("text", text, shown(value)));
  }
  const middle = (MARGIN.top + bottom) / 2;
  group.append(
    vertical
      ? svg("text", { transform: `translate(14,${middle})rotate(-90)`, "text-anchor": "middle" }, axis.title)
      : svg("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 6, "text-anchor": "middle" }, axis.title),
  );
  return group;
}

function legend(series) {
  const items = series.filter((one) => one.legend).map((one) => {
    const key = svg("svg", { width: 14, height: 12, "aria-hidden": "true" });
    key.append(one.kind === "band" ? svg("rect", { width: 14, height: 12, fill: one.colour, "fill-opacity": 0.17 }) : mark(one.symbol, 7, 6, 9, one.colour));
    return make("li", {}, key, one.name);
  });
  return items.length ? [make("ul", { class: "legend" }, ...items)] : [];
}

/**
 * Draw a chart into an element, and let it follow the element's width from then on.
 * @param data {series, x, y, height, rule}: series are {name, kind: "steps" | "points" | "band", x, y, low, colour, symbol,
 *   size, sizes, colours, texts, below, legend, hover, pick}; axes are {title, log, range}; rule is {axis, at, colour}
 */
export function chart(element, data) {
  element.chart = data;
  if (!element.clientWidth) return;
  const { series, x, y, height, rule } = data;
  const size = { width: element.clientWidth, height };
  const toX = placing(x, MARGIN.left, size.width - MARGIN.right);
  const toY = placing(y, height - MARGIN.bottom, MARGIN.top);
  const root = svg("svg", { class: "chart", width: size.width, height, viewBox: `0 0 ${size.width} ${height}` });
  root.append(axisLines(x, toX, false, size), axisLines(y, toY, true, size));
  if (rule) {
    const at = (rule.axis === "x" ? toX : toY)(rule.at);
    const ends = rule.axis === "x" ? { x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom } : { x1: MARGIN.left, x2: size.width - MARGIN.right, y1: at, y2: at };
    root.append(svg("line", { ...ends, stroke: rule.colour, "stroke-dasharray": "2 3" }));
  }
  root.append(...series.map((one) => drawn(one, toX, toY)));
  element.replaceChildren(...legend(series), root);
  if (element.follows) return;
  element.follows = new ResizeObserver(() => element.clientWidth && redraw(element));
  element.follows.observe(element);
}

function redraw(element) {
  const root = element.querySelector("svg.chart");
  if (!root || Math.abs(root.clientWidth - element.clientWidth) > 1) chart(element, element.chart);
}

/** The range of values on a logarithmic axis with room at both ends: at least a factor of `least`. */
export function logRange(values, least = 1, room = 0.06) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  const [low, high] = [logs.reduce((p, q) => Math.min(p, q)), logs.reduce((p, q) => Math.max(p, q))];
  const more = Math.max(room * (high - low), (Math.log10(least) - (high - low)) / 2);
  return [10 ** (low - more), 10 ** (high + more)];
}
