// The chart of step sizes, from the trace of the response.
import { colours } from "./canvas.js";
import { $ } from "./dom.js";
import { chart } from "./plotly.js";

const ROUND = [-6, -5, -4, -3, -2, -1, 0].flatMap((k) => [1, 2, 5].map((digit) => digit * 10 ** k));

/**
 * Draw the steps of runs: those in the response, or those of a chosen sample.
 * @param chosen {index, followed} of the chosen sample, `followed` having its trace by side; or null
 */
export async function draw(runs, chosen = null) {
  const lines = runs.map((run) => line(run, chosen)).filter((one) => one.trace?.t.length);
  $("steps").hidden = !lines.length;
  $("steps-text").textContent = lines.map(describe).join(" ");
  if (!lines.length) return;
  try {
    const paint = colours();
    const drawn = lines.flatMap((one) => series(one, paint));
    const yaxis = { title: { text: "h" }, type: "log", range: span(drawn), tickvals: ROUND, tickformat: "~g" };
    await chart($("steps"), drawn, { height: 340, xaxis: { title: { text: "t" } }, yaxis });
  } catch (error) {
    $("steps-text").textContent = error.message;
  }
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

function series({ side, label, trace }, paint) {
  const colour = paint[side];
  const drawn = [];
  const { t, h, error, accepted } = trace;
  if (trace.quantiles) drawn.push(...band(trace.quantiles, label, colour));
  const steps = { t: where(t, accepted), h: where(h, accepted).map(Math.abs) };
  const last = steps.t.length ? steps.t.at(-1) + where(h, accepted).at(-1) : 0;
  drawn.push({
    x: [...steps.t, last], y: [...steps.h, steps.h.at(-1)], name: label, type: "scatter", mode: "lines+markers",
    line: { shape: "hv", color: colour, width: 2 },
    marker: { size: [...steps.h.map(() => 6), 0], color: colour, symbol: side === "a" ? "circle" : "square" },
    hovertemplate: `t %{x:.4g}, h %{y:.3g}<extra>${label}</extra>`,
  });
  const refused = accepted.map((good) => !good);
  if (refused.some(Boolean)) {
    drawn.push({
      x: where(t, refused), y: where(h, refused).map(Math.abs), customdata: where(error, refused),
      name: `${label} rejected`, type: "scatter", mode: "markers",
      marker: { symbol: "x", size: 11, color: colour, line: { width: 1.5, color: paint.card } },
      hovertemplate: `t %{x:.4g}, h %{y:.3g}, error %{customdata:.3g}<extra>${label} rejected</extra>`,
    });
  }
  return drawn;
}

/** The band that contains 80 % of the steps of all samples. */
function band({ t, q10, q90 }, label, colour) {
  const some = q10.map((value) => value !== null);
  const edge = { x: where(t, some), type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", legendgroup: label };
  return [
    { ...edge, y: where(q10, some), showlegend: false },
    { ...edge, y: where(q90, some), fill: "tonexty", fillcolor: `${colour}2b`, name: `${label} 80 % of all steps` },
  ];
}

/** The axis of h as powers of ten: a factor of 4 at least, or the rounding of equal steps would fill the chart. */
function span(drawn) {
  const sizes = drawn.flatMap((line) => line.y).filter((h) => h > 0).map(Math.log10);
  const [low, high] = [sizes.reduce((p, q) => Math.min(p, q)), sizes.reduce((p, q) => Math.max(p, q))];
  const room = Math.max(0.06 * (high - low), (Math.log10(4) - (high - low)) / 2);
  return [low - room, high + room];
}
