// A canvas that is sharp on every screen, and the colours of the page for drawing on it.

export function fit(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** The side of a square figure: as large as the window allows with the verdict and the time slider in sight. */
export function figureSide(width) {
  const intro = document.documentElement.dataset.intro === undefined ? 0 : 140;
  const above = document.getElementById("toolbar").offsetHeight + intro;
  const rest = innerWidth < 864 ? 590 : 376 + above; // pixels for the parts above and below
  return Math.min(width, Math.max(240, Math.min(520, innerHeight - rest)));
}

/** A number beside an axis; large ones are short, such as 120K. */
export function tickText(value) {
  const large = Math.abs(value) >= 1e5;
  return large ? value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }) : String(value);
}

const NAMES = ["a", "b", "text", "quiet", "line", "card", "low", "high", "heat"];

export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** A colour between two others, given as #rrggbb. */
export function blend(low, high, share) {
  const [p, q] = [channels(low), channels(high)];
  return `rgb(${p.map((value, k) => Math.round(value + (q[k] - value) * share)).join(",")})`;
}

/** Round numbers between two ends, about `count` of them. */
export function ticks(low, high, count = 5) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((size) => size >= rough);
  const numbers = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) numbers.push(Number((k * step).toPrecision(12)));
  return numbers;
}
