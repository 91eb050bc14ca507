// The verdict: each solver's error against a reference solution that is computed in the background.
import * as api from "./api.js";
import { drawn, each } from "./conditions.js";
import { $, button, make } from "./dom.js";
import { apart } from "./figures.js";
import { line } from "./problem.js";
import { errors, percent } from "./statistics.js";
import { what } from "./terms.js";

const SAMPLES = 500; // number of samples, from the first on, with known errors
const LEAST = 32; // minimum number of samples to measure the spread on, even if fewer are drawn
const cache = new Map(); // the reference solutions of this tab, the newest last
const KEPT = 8;

/** The smallest tolerance that a model's precision allows. */
const floor = (dtype) => (dtype === "float64" ? 1e-14 : 1e-7);

/**
 * Solve for the same samples as tightly as the model's precision allows.
 * @param body the request for the samples
 * @returns {Promise<{label: string, response: any}>}
 */
export async function reference(body, dtype, signal, count = SAMPLES) {
  const { seed, num_samples: all } = body;
  const tolerance = floor(dtype);
  const solver = { solver: "dopri5", rtol: tolerance, atol: tolerance };
  const tight = { ...drawn(body), num_samples: each(body) ? all : Math.min(Math.max(all, LEAST), count), seed, ...solver };
  const key = api.stringify(tight);
  if (!cache.has(key)) {
    const response = await api.background({ ...tight, on_timeout: "partial" }, signal);
    cache.set(key, { label: response.solver.text, response });
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return cache.get(key);
}

/** Forget all reference solutions: a model may have a new version. */
export const forget = () => cache.clear();

/**
 * Measure runs, and say how they compare.
 * @param runs drawn runs; each gets `errors`
 * @param worst called with the index of a sample that is to be shown
 */
export async function judge(runs, dtype, signal, worst) {
  say(["measuring the error …"], runs);
  try {
    const exact = await reference(runs[0].body, dtype, signal);
    if (signal.aborted) return;
    for (const run of runs) run.errors = errors(run.response, exact.response);
    say(runs[1] ? compared(runs, worst) : alone(runs[0], exact.label, worst), runs);
  } catch (error) {
    if (error.name === "AbortError") return;
    for (const run of runs) run.errors ??= null; // known to be unknown
    say([`The error is unknown: ${line(error)}`], runs);
  }
}

/** Clear the verdict while samples are drawn. */
export const clear = () => $("verdict").replaceChildren();

function say(parts, runs) {
  const between = apart(runs);
  $("verdict").replaceChildren(make("p", {}, ...parts), ...(between ? [make("p", { id: "distance", class: "quiet" }, between)] : []));
}

const show = (text, run, worst) => button(text, () => worst(run.errors.worstIndex), { class: "link" });

function alone(run, label, worst) {
  if (!run.errors) return [unknown([run])];
  const { mean, worst: most } = run.errors;
  return [
    make("strong", {}, `${run.label}: ${percent(mean)} of the spread away`),
    what("spread", "the spread"),
    ` from the reference (${label}), with ${evaluations(run.response.nfe)}. `,
    show(`Worst sample: ${percent(most)}`, run, worst),
  ];
}

/** The cheaper solver, against the other. */
function compared(runs, worst) {
  if (!runs.every((run) => run.errors)) return [unknown(runs.filter((run) => !run.errors))];
  const [cheap, costly] = [...runs].sort((p, q) => p.response.nfe - q.response.nfe || p.errors.mean - q.errors.mean);
  return [
    make("strong", {}, `${cheap.label}: ${fewer(cheap.response.nfe, costly.response.nfe)}, ${percent(cheap.errors.mean)} of the spread away`),
    what("spread", "the spread"),
    ` (${costly.label}: ${percent(costly.errors.mean)}). `,
    show("Worst sample here", cheap, worst),
  ];
}

/** Why there is no error. */
function unknown(runs) {
  const those = runs.map((run) => run.label).join(" and ");
  const none = runs.every((run) => run.response.failed.length === run.response.samples.length);
  return none ? `The error is unknown: no sample of ${those} reached the end.` : `The error of ${those} is unknown: there is no reference solution for these samples.`;
}

const evaluations = (count) => `${count} evaluation${count === 1 ? "" : "s"}`;

/** 10 against 80 evaluations, in words. */
function fewer(few, many) {
  if (few === many) return `the same ${evaluations(few)}`;
  const factor = many / few;
  if (factor < 1.15) return `${evaluations(many - few)} fewer`;
  return `${factor < 2 ? factor.toFixed(1) : Math.round(factor)}× fewer evaluations`;
}
