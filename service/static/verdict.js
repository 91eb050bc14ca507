// The verdict: the endpoint error of each solver for the samples drawn, measured by the service in the background.
import * as api from "./api.js";
import { drawn, each } from "./conditions.js";
import { $, button, make } from "./dom.js";
import { apart } from "./figures.js";
import { line } from "./problem.js";
import { percent } from "./statistics.js";
import { what } from "./terms.js";
import { stochastic } from "./view.js";

const SAMPLES = 500; // number of samples, from the first on, with known errors
const LEAST = 90; // samples for which p95 has an interval

/**
 * Measure runs, and say how they compare.
 * @param runs drawn runs; each gets `errors`: {each, p95, p95_high, worst, worstIndex}, or null where it is not known
 * @param worst called with the index of a sample that is to be shown
 */
export async function judge(runs, signal, worst) {
  const followed = runs.filter((run) => !stochastic(run)); // paths with exact ends
  const noisy = runs.filter(stochastic);
  for (const run of noisy) run.errors = null; // known to be unknown
  const unmeasured = noisy.map((run) => ` ${run.label} has noise of its own: its paths have no exact ends, and so no error.`);
  if (noisy.length) unmeasured.push(" ", button("Show paths from one noise", () => worst(0), { class: "link" }));
  if (!followed.length) return say(unmeasured, runs);
  say(["measuring the error …"], runs);
  try {
    const [{ body }] = runs;
    const all = body.num_samples;
    const count = each(body) ? all : Math.min(Math.max(all, LEAST), SAMPLES);
    const texts = [...new Set(followed.map((run) => run.response.solver.text))];
    const ask = { ...drawn(body), model: undefined, seed: body.seed, num_samples: count, solvers: texts, per_sample: true };
    const points = new Map();
    let label = "";
    for await (const { event, data } of api.measure(body.model, ask, signal)) {
      if (event === "reference") label = data.solver;
      if (event === "point" && data.p95_high !== null) points.set(data.solver, data);
    }
    if (signal.aborted) return;
    for (const run of followed) run.errors = errorsOf(points.get(run.response.solver.text), all);
    say([...(followed[1] ? compared(followed, worst) : alone(followed[0], label, worst)), ...unmeasured], runs);
  } catch (error) {
    if (error.name === "AbortError") return;
    for (const run of runs) run.errors ??= null;
    say([`The error is unknown: ${line(error)}`], runs);
  }
}

/** A point as the page shows it: errors of the samples drawn, and the worst of these. */
function errorsOf(point, count) {
  if (!point) return null;
  const shown = point.errors.slice(0, count);
  const worst = shown.reduce((p, q) => Math.max(p, q ?? -1), -1);
  return { each: shown, p95: point.p95, promised: point.p95_high, samples: point.errors.length, worst, worstIndex: shown.indexOf(worst) };
}

/** Clear the verdict while samples are drawn. */
export const clear = () => $("verdict").replaceChildren();

function say(parts, runs) {
  const between = apart(runs);
  $("verdict").replaceChildren(make("p", {}, ...parts), ...(between ? [make("p", { id: "distance", class: "quiet" }, between)] : []));
}

const show = (text, run, worst) => button(text, () => worst(run.errors.worstIndex), { class: "link" });

const within = ({ errors: { p95 } }) => `95 % of these samples end within ${percent(p95)}`;

function alone(run, label, worst) {
  if (!run.errors) return [unknown([run])];
  return [
    make("strong", {}, `${run.label}: ${within(run)} of the spread`),
    what("spread", "the spread"),
    ` from the exact ends of their paths (${label}; ${run.errors.samples} samples of this seed), with ${evaluations(run.response.nfe)}. `,
    show(`Worst sample: ${percent(run.errors.worst)}`, run, worst),
  ];
}

/** The cheaper solver, against the other. */
function compared(runs, worst) {
  if (!runs.every((run) => run.errors)) return [unknown(runs.filter((run) => !run.errors))];
  const [cheap, costly] = [...runs].sort((p, q) => p.response.nfe - q.response.nfe || p.errors.p95 - q.errors.p95);
  return [
    make("strong", {}, `${cheap.label}: ${fewer(cheap.response.nfe, costly.response.nfe)}, ${within(cheap)} of the spread`),
    what("spread", "the spread"),
    ` (${costly.label}: ${percent(costly.errors.p95)}). `,
    show("Worst sample here", cheap, worst),
  ];
}

/** Why there is no error. */
function unknown(runs) {
  const those = runs.map((run) => run.label).join(" and ");
  const none = runs.every((run) => run.response.failed.length === run.response.samples.length);
  return none ? `The error is unknown: no sample of ${those} reached the end.` : `The error of ${those} is unknown: too few samples reached the end.`;
}

const evaluations = (count) => `${count} evaluation${count === 1 ? "" : "s"}`;

/** 10 against 80 evaluations, in words. */
function fewer(few, many) {
  if (few === many) return `the same ${evaluations(few)}`;
  const factor = many / few;
  if (factor < 1.15) return `${evaluations(many - few)} fewer`;
  return `${factor < 2 ? factor.toFixed(1) : Math.round(factor)}× fewer evaluations`;
}
