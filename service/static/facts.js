// The model card: what a model was trained on, how good its samples are in words, what they cost, and real data beside them.
import { $, make, titled } from "./dom.js";
import * as pictures from "./pictures.js";

const COLUMNS = 12; // that are named
const count = (value) => Number(value).toLocaleString("en");

/** Show what is known of a version. @param version as in /v1/models/NAME @param best the solver that its frontier recommends, or null */
export function show(name, version, best) {
  $("facts-title").textContent = `Model card: ${name} v${version.version}`;
  const facts = [data(version.card), columns(version.card), trained(version.card), quality(version.report), cost(best)].filter(Boolean);
  const none = "Neither data nor training are recorded.";
  $("facts-list").replaceChildren(...(facts.length ? facts : [fact("Origin", none)]));
  sheet(version);
}

const fact = (term, ...parts) => make("div", {}, make("dt", {}, term), make("dd", {}, ...parts));

function data({ dataset: { name, source, path, samples, held_out: unseen } }) {
  const origin = source ?? path ?? name;
  if (!origin) return null;
  const rows = samples ? [`${count(samples)} samples to train on`, ...(unseen ? [`${count(unseen)} held out`] : [])] : [];
  return fact("Data", [origin, ...rows].join("; "));
}

function columns({ decoder }) {
  const all = decoder.columns ?? [];
  if (!all.length) return null;
  const about = (column) => {
    if (column.kind === "yes-no") return `${titled(column)} (0 or 1)`;
    const digits = (value) => (column.decimals === undefined ? String(Number(value.toPrecision(6))) : value.toFixed(column.decimals));
    const range = column.low < column.high ? `${digits(column.low)} to ${digits(column.high)}` : `always ${digits(column.low)}`;
    return `${titled(column)} (${column.kind === "whole" ? "whole, " : ""}${range})`;
  };
  const more = all.length > COLUMNS ? `, and ${all.length - COLUMNS} more` : "";
  return fact("Columns", all.slice(0, COLUMNS).map(about).join(", ") + more);
}

function trained({ training: { finished, steps, parameters, train_s: seconds } }) {
  if (!steps) return null;
  const day = finished ? [new Date(finished).toLocaleDateString("en", { dateStyle: "medium" })] : [];
  const minutes = seconds > 90 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`;
  return fact("Trained", [...day, `${count(steps)} steps in ${minutes}`, `${count(parameters)} parameters`].join(", "));
}

/** The report in words; what is wrong stands out. */
function quality(sentences) {
  if (!sentences.length) return null;
  const shown = sentences.map((text) => text.replace(/^is it any good\? /, ""));
  const line = (text) => make("li", text.startsWith("WARNING: ") ? { class: "warning" } : {}, text.replace("WARNING: ", ""));
  return fact("Quality", make("ul", {}, ...shown.map(line)));
}

const cost = (best) => best && fact("Cost", `${best.nfe_most} evaluations (${best.solver}) keep 1 % of the spread for 95 % of samples`);

let drawn = 0; // the width of the sheet

function sheet({ examples = [], card }) {
  const { data_shape: shape } = card;
  const figure = $("real-pictures");
  figure.hidden = !examples.length || pictures.layoutOf(shape) === null;
  if (figure.hidden) return;
  const canvas = figure.querySelector("canvas");
  const draw = () => {
    if (!canvas.clientWidth || canvas.clientWidth === drawn) return;
    drawn = canvas.clientWidth;
    pictures.draw(canvas, examples, shape, pictures.scale(pictures.extent(examples)));
  };
  figure.querySelector("figcaption").textContent = `${examples.length} real pictures that training did not see`;
  drawn = 0;
  draw();
  figure.follows ??= new ResizeObserver(() => figure.redraw());
  figure.redraw = draw;
  figure.follows.observe(canvas);
}
