// The chart of step sizes, from the trace of the answer as it is. Plotly.js is loaded when it is first needed.
import { colours } from "./canvas.js";

const $ = (id) => document.getElementById(id);
const ROUND = [-6, -5, -4, -3, -2, -1, 0].flatMap((k) => [1, 2, 5].map((digit) => digit * 10 ** k));
let loading = null;

export function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.plotly;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("The chart cannot be drawn: Plotly.js did not load. Is the plotly package installed?"));
    };
    document.head.append(script);
  });
  return loading;
}

/** Draw the traces of runs [{side, label, answer}]. */
export async function draw(runs) {
  const shown = runs.filter((run) => run.answer.trace?.t.length);
  $("steps").hidden = !shown.length;
  $("steps-text").textContent = shown.map(describe).join(" ");
  if (!shown.length) return;
  try {
    const plotly = await loadPlotly();
    const paint = colours();
    const options = { displayModeBar: false, responsive: true };
    const drawn = shown.flatMap((run) => series(run, paint));
    await plotly.react($("steps"), drawn, layout(paint, runs.length === 1 ? 460 : 340, span(drawn)), options);
  } catch (error) {
    $("steps-text").textContent = error.message;
  }
}

const where = (values, keep) => values.filter((_, k) => keep[k]);

function describe({ label, answer }) {
  const { t, h, accepted } = answer.trace;
  const taken = where(h, accepted).map(Math.abs);
  const rejected = t.length - taken.length;
  const of = answer.nfe_per_sample.min === answer.nfe_per_sample.max ? "each sample" : "the first sample";
  if (!taken.length) return `${label}: ${of} took no step; ${rejected} rejected.`;
  const [least, most] = [taken.reduce((p, q) => Math.min(p, q)), taken.reduce((p, q) => Math.max(p, q))].map((x) => x.toPrecision(2));
  const sizes = least === most ? `h = ${least}` : `h from ${least} to ${most}`;
  const refused = rejected ? `; ${rejected} more ${rejected === 1 ? "was" : "were"} rejected` : "";
  return `${label}: ${of} takes ${taken.length} step${taken.length === 1 ? "" : "s"}, ${sizes}${refused}.`;
}

function series({ side, label, answer: { trace } }, paint) {
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

/** Where 80 % of the steps of all samples lie. */
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

function layout(paint, height, range) {
  const axis = { gridcolor: paint.line, linecolor: paint.line, zeroline: false, ticks: "" };
  return {
    height,
    margin: { l: 58, r: 12, t: 30, b: 42 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", size: 12, color: paint.text },
    xaxis: { ...axis, title: { text: "t" } },
    yaxis: { ...axis, title: { text: "h" }, type: "log", range, tickvals: ROUND, tickformat: "~g" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: "closest",
  };
}
