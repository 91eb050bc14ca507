// The chart of step sizes, from the trace of the response.
import { colours } from "./canvas.js";
import { chart, logRange } from "./chart.js";
import { $ } from "./dom.js";

/**
 * Draw the steps of runs: those in the response, or those of a chosen sample.
 * @param chosen {index, followed} of the chosen sample, `followed` having its trace by side; or null
 */
export function draw(runs, chosen = null) {
  const lines = runs.map((run) => line(run, chosen)).filter((one) => one.trace?.t.length);
  $("steps").hidden = !lines.length;
  $("steps-text").textContent = lines.map(describe).join(" ");
  if (!lines.length) return;
  const series = lines.flatMap((one) => seriesOf(one, colours()));
  const [ts, sizes] = [series.flatMap((one) => one.x), series.flatMap((one) => [...one.y, ...(one.low ?? [])])];
  const x = { title: "t", range: [Math.min(0, ...ts), Math.max(1, ...ts)] };
  const y = { title: "h", log: true, range: logRange(sizes, 4) }; // or the rounding of equal steps would fill the chart
  chart($("steps"), { series, x, y, height: 320 });
}

function line({ side, label, response }, chosen) {
  const followed = chosen?.followed[side];
  if (followed) return { side, label, trace: followed.trace, who: `sample ${chosen.index}` };
  const { min, max } = response.nfe_per_sample;
  return { side, label, trace: response.trace, who: min === max ? "each sample" : "the first sample" };
}

const where = (values, keep) => values.filter((_, k) => keep[k]);

function describe({ label, trace: { t, h, accepted }, who }) {
  const taken = where(h, accepted).map(Math.abs);
  const rejected = t.length - taken.length;
  if (!taken.length) return `${label}: ${who} took no step; ${rejected} rejected.`;
  const [least, most] = [taken.reduce((p, q) => Math.min(p, q)), taken.reduce((p, q) => Math.max(p, q))].map((x) => x.toPrecision(2));
  const sizes = least === most ? `h = ${least}` : `h from ${least} to ${most}`;
  const refused = rejected ? `; ${rejected} more ${rejected === 1 ? "was" : "were"} rejected` : "";
  return `${label}: ${who} takes ${taken.length} step${taken.length === 1 ? "" : "s"}, ${sizes}${refused}.`;
}

function seriesOf({ side, label, trace }, paint) {
  const colour = paint[side];
  const { t, h, error, accepted } = trace;
  const series = trace.quantiles ? [band(trace.quantiles, label, colour)] : [];
  const steps = { t: where(t, accepted), h: where(h, accepted).map(Math.abs) };
  const last = steps.t.length ? steps.t.at(-1) + where(h, accepted).at(-1) : 0;
  if (steps.t.length) {
    series.push({
      name: label, kind: "steps", x: [...steps.t, last], y: [...steps.h, steps.h.at(-1)], colour, legend: true,
      symbol: side === "a" ? "circle" : "square",
      hover: (k) => `${label}: t ${steps.t[k].toPrecision(4)}, h ${steps.h[k].toPrecision(3)}`,
    });
  }
  const refused = accepted.map((good) => !good);
  if (refused.some(Boolean)) {
    const [x, y, errors] = [where(t, refused), where(h, refused).map(Math.abs), where(error, refused)];
    series.push({
      name: `${label} rejected`, kind: "points", x, y, colour, symbol: "x", size: 10, legend: true,
      hover: (k) => `${label} rejected: t ${x[k].toPrecision(4)}, h ${y[k].toPrecision(3)}, error ${errors[k]?.toPrecision(3)}`,
    });
  }
  return series;
}

/** The band that contains 80 % of the steps of all samples. */
function band({ t, q10, q90 }, label, colour) {
  const some = q10.map((value) => value !== null);
  return { name: `${label} 80 % of all steps`, kind: "band", x: where(t, some), y: where(q90, some), low: where(q10, some), colour, legend: true };
}
