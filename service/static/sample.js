// One sample up close: its path and its own steps with each solver, its error, its picture enlarged.
import * as api from "./api.js";
import { each, subjectOf } from "./conditions.js";
import { $, make } from "./dom.js";
import * as pictures from "./pictures.js";
import { distances, mean, percent } from "./statistics.js";
import { what } from "./terms.js";
import { stochastic } from "./view.js";

const POINTS = 60; // of a path under error control, besides the ends of its steps
const MOST = 900; // maximum number of times requested
const CLOSE = 1e-6; // times closer than this count as the same
const FAN = 24; // paths of a stochastic solver from one noise
const COUNTED = 1000; // maximum number of samples with their own count of evaluations

/**
 * Follow one sample of a run: ask for it alone, which gives the same bits, with all its steps.
 * @returns {Promise<{trace: any, nfe: number, path: number[][], steps: number[][], fan?: number[][][]}>} states on its
 *   way, where its steps end, and paths from the same noise with other noise of a stochastic solver
 */
export async function follow(run, index, signal) {
  const { body } = run;
  if ((run.solver ?? body).error_control === "batch") return together(run, index); // alone it would have other steps
  const one = { ...body, ...subjectOf(body, index), num_samples: 1, first_index: index, trace: "full" };
  const { trace, nfe, solver } = await api.sample(one, signal);
  const ends = trace.t.map((t, k) => t + trace.h[k]).filter((_, k) => trace.accepted[k]);
  ends[ends.length - 1] = Math.min(1, ends.at(-1));
  const between = solver.steps === undefined ? POINTS : 0;
  const dense = [0, ...ends, ...Array.from({ length: between }, (_, k) => (k + 0.5) / POINTS)].sort((p, q) => p - q);
  const exact = new Set(ends);
  const times = dense.filter((t, k) => exact.has(t) || !near(t, dense[k - 1]) && !near(t, dense[k + 1]));
  if (times.length > MOST) return { trace, nfe, path: run.frames.map((frame) => frame.states[index]), steps: [] };
  const { saved } = await api.sample({ ...one, save_at: times, trace: "none" }, signal);
  const path = saved.states[0].filter((state) => state !== null);
  const fan = stochastic({ solver }) && run.shape.length === 1 ? await paths(one, times, signal) : undefined;
  return { trace, nfe, path, fan, steps: saved.t.flatMap((t, k) => (ends.some((end) => near(t, end)) ? [saved.states[0][k]] : [])) };
}

/** Paths from the starting noise of a sample: its own, and those with the noise on the way of the samples after it. */
async function paths(one, times, signal) {
  const { saved: start } = await api.sample({ ...one, save_at: [0], decode: false, trace: "none" }, signal);
  const every = Math.ceil(times.length / POINTS);
  const save_at = times.filter((_, k) => k % every === 0 || k === times.length - 1);
  const [[x0]] = start.states;
  const body = { ...one, num_samples: FAN, x0: Array(FAN).fill(x0), noise_scale: undefined, save_at, trace: "none" };
  return (await api.sample(body, signal)).saved.states;
}

const near = (p, q) => q !== undefined && Math.abs(p - q) < CLOSE;

function together({ response, frames }, index) {
  return { trace: response.trace, nfe: response.nfe, path: frames.map((frame) => frame.states[index]).filter(Boolean), steps: [] };
}

/** Log-density of a sample if it can be computed exactly, else null. */
export async function logDensity({ body, shape, response }, index, signal) {
  if (shape.length !== 1 || shape[0] > 16 || !response.samples[index]) return null;
  const { model: _, shape: __, ...about } = subjectOf(body, index);
  const question = { samples: [response.samples[index]], ...about, priority: "interactive" };
  return (await api.operation(body.model, "log_prob", question, signal)).log_prob[0];
}

/**
 * Show everything known about a sample.
 * @param followed results of `follow`, by side
 * @param densities log-density by side, null if it is not known
 */
export function show(index, runs, followed, densities = {}) {
  $("sample").hidden = false;
  $("sample-index").value = index;
  $("sample-index").max = Math.min(...runs.map((run) => run.response.samples.length)) - 1;
  const parts = [table(index, runs, followed, densities)];
  if (pictures.layoutOf(runs[0].shape)) parts.unshift(enlarged(index, runs));
  for (const { side, label } of runs) if (followed[side]?.fan) parts.push(make("p", { class: "quiet" }, about(label, followed[side].fan)));
  $("sample-body").replaceChildren(...parts);
}

/** A fan in words. */
function about(label, [own, ...others]) {
  const away = distances(others.map((path) => path.at(-1)), others.map(() => own.at(-1))).filter((value) => value !== null);
  const text = `Thin lines: ${others.length} paths of ${label} from the same starting noise, with other noise on the way.`;
  return away.length ? `${text} They end ${mean(away).toPrecision(3)} from this one, on average.` : text;
}

export const hide = () => ($("sample").hidden = true);

const short = (state) => `(${state.slice(0, 4).map((value) => value.toPrecision(4)).join(", ")}${state.length > 4 ? ", …" : ""})`;

function table(index, runs, followed, densities) {
  const planar = runs[0].shape.length === 1;
  const dense = runs.some((run) => Number.isFinite(densities[run.side]));
  const head = ["Solver", "Steps", "Rejected", "NFE", "Error", ...(planar ? ["Ends at"] : []), ...(dense ? ["log p"] : [])];
  const terms = { Rejected: "rejected", NFE: "nfe", Error: "error", "log p": "log_prob" };
  const column = (text) => make("th", { scope: "col" }, text, ...(terms[text] ? [what(terms[text], text)] : []));
  const rows = runs.map(({ side, label, errors, response }) => {
    const { trace, nfe } = followed[side] ?? {};
    const taken = trace?.accepted.filter(Boolean).length;
    const error = errors?.each[index];
    const state = response.samples[index];
    const cells = [trace ? taken : "…", trace ? trace.t.length - taken : "…", nfe ?? "…", Number.isFinite(error) ? percent(error) : "unknown"];
    if (planar) cells.push(state ? short(state) : "not reached");
    if (dense) cells.push(densities[side]?.toFixed(2) ?? "");
    const name = make("th", { scope: "row", class: side }, make("span", { class: "key", "aria-hidden": "true" }), label);
    return make("tr", {}, name, ...cells.map((cell) => make("td", {}, String(cell))));
  });
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "This sample by each solver" },
    make("table", {}, make("thead", {}, make("tr", {}, ...head.map(column))), make("tbody", {}, ...rows)));
}

function enlarged(index, runs) {
  const box = make("div", { class: "enlarged" });
  const { shape } = runs[0];
  const states = runs.map((run) => run.response.samples[index]);
  const scale = pictures.scale(pictures.extent(states));
  const add = (name, state, range) => {
    const canvas = make("canvas", { role: "img", "aria-label": `sample ${index}: ${name}` });
    box.append(make("figure", {}, canvas, make("figcaption", { class: "quiet" }, name)));
    requestAnimationFrame(() => pictures.draw(canvas, [state], shape, range));
  };
  runs.forEach((run, k) => add(run.label, states[k], scale));
  if (runs.length > 1 && states[0] && states[1]) {
    const { states: [difference], scale: range, most } = pictures.differences([states[0]], [states[1]]);
    add(`difference, at most ${most.toPrecision(2)}`, difference, range);
  }
  return box;
}

/**
 * Network evaluations of each sample of a run, from its attempted steps.
 * @param stages of the solver: an attempt takes one evaluation fewer, as its first stage is known
 */
export async function evaluations({ body, response }, stages, signal) {
  const count = response.samples.length;
  const { min, max } = response.nfe_per_sample;
  if (min === max) return Array(count).fill(max);
  const few = each(body) ? count : Math.min(count, COUNTED);
  const { trace, nfe } = await api.sample({ ...body, num_samples: few, trace: "full" }, signal);
  const attempts = Array(few).fill(0);
  for (const index of trace.sample) attempts[index]++;
  const most = attempts.reduce((p, q) => Math.max(p, q));
  return attempts.map((taken) => nfe - (most - taken) * (stages - 1));
}
