// Drawing samples: a request becomes pages, each of them a stream of states on their way from noise to data.
import * as api from "./api.js";
import { each, subjectOf } from "./conditions.js";
import { layoutOf } from "./pictures.js";
import { TUNED, spelled } from "./view.js";

const PAGE = 1000; // samples in one request: a large drawing arrives piece by piece and meets no deadline as a whole
const PICTURES = 400; // pictures on one sheet
const FRAMES = 40; // times at which states are requested
const NUMBERS = 2_000_000; // maximum numbers in the frames of a drawing

/**
 * One solver's drawing: `solver` is null until the service has resolved it, `response` is null until the first page has arrived, `frames` has the states on the way of all
 * samples that have arrived, and `page` those of the page that is arriving.
 */
export class Run {
  /** @param shape of a sample, free axes by name, or null if the model is not known */
  constructor(side, label, body, shape) {
    const sizes = (shape ?? []).map((size) => (typeof size === "string" ? body.shape?.[size] : size));
    Object.assign(this, { side, label, body, shape: sizes, solver: null, response: null, frames: [], page: null, share: 0, left: null });
    this.t = 0; // the time that is shown; null is the end
  }

  /** The states to show now, with those before them as `trails`. */
  get shown() {
    if (!this.page) return this.response ? between(this.frames, this.t, this.response.samples) : { states: [], trails: [] };
    const arriving = between(this.page.frames, this.t ?? Infinity, this.page.frames.at(-1)?.states ?? []);
    return { states: [...(this.response?.samples ?? []), ...arriving.states], trails: this.response ? [] : arriving.trails };
  }

  /** The pages of the request: first index and number of samples of each. */
  get pages() {
    const { num_samples: count } = this.body;
    const one = (this.solver ?? this.body).error_control === "batch" || each(this.body) || !Number.isSafeInteger(count) || count < 1;
    const size = one ? count : this.pictures ? PICTURES : PAGE;
    if (one || count <= size) return [[0, count]];
    return Array.from({ length: Math.ceil(count / size) }, (_, k) => [k * size, Math.min(size, count - k * size)]);
  }

  get pictures() {
    return layoutOf(this.shape) !== null;
  }

  /**
   * Ask for the samples.
   * @param timeout seconds that a page may take, or undefined for the service's own limit
   * @param changed called whenever there is more to show
   */
  async draw(timeout, signal, changed) {
    const times = await this.#times(signal);
    let began = null;
    for (const [offset, size] of this.pages) {
      const moving = this.pictures && offset ? undefined : times; // no picture after the first page is on the sheet
      const extra = { num_samples: size, save_at: moving, on_timeout: "partial", timeout_s: timeout };
      const body = { ...this.body, ...(offset ? { first_index: offset, trace: "none" } : {}), ...extra };
      this.page = { frames: [] };
      let response = null;
      for await (const { event, data } of api.stream(body, signal, offset > 0)) {
        if (event === "start") this.#resolve(data.solver);
        if (event === "sample") this.page.frames.push({ t: data.t, states: data.states });
        if (event === "completed") response = data;
        if (event === "progress") {
          this.share = (offset + data.share * size) / this.body.num_samples;
          if (!data.queued) began ??= performance.now();
          const elapsed = (performance.now() - began) / 1e3;
          this.left = began && elapsed > 1 && this.share > 0 ? (elapsed * (1 - this.share)) / this.share : null;
        }
        changed(this);
      }
      if (!response) {
        const advice = "The samples received so far are shown. Draw again to get the rest.";
        throw new api.Problem("The stream ended before the samples were done", advice);
      }
      this.#keep(response, offset);
      if (response.status === "deadline") break;
    }
    changed(this);
  }

  /** Note the solver as the service resolves it. */
  #resolve(solver) {
    this.solver = solver;
    this.label = solver.text;
    const { budget, ...rest } = this.body;
    if (budget) this.body = { ...rest, solver: solver.text }; // the choice is the run's own, for all later requests
  }

  #keep(response, offset) {
    this.#resolve(response.solver);
    const { frames } = this.page;
    if (!offset) this.frames = frames;
    else if (!this.pictures) {
      const missing = response.samples.map(() => null);
      this.frames.forEach((frame, k) => (frame.states = frame.states.concat(frames[k]?.states ?? missing)));
    }
    delete response.saved; // the frames have it
    this.shape = response.shape.slice(1); // free axes have a size now
    this.response = this.response ? joined(this.response, response, offset) : response;
    this.page = null;
  }

  /** Times at which to request states: any under error control, grid points with fixed steps; undefined for none. */
  async #times(signal) {
    const { solver, steps, grid, num_samples: count, budget } = this.body;
    if (budget) return undefined; // the possible times depend on the solver yet to be chosen
    const numbers = this.shape.reduce((product, size) => product * size, 1) * (this.pictures ? Math.min(count, PICTURES) : count);
    const frames = Math.min(FRAMES, Math.floor(NUMBERS / numbers));
    const evenly = (parts) => Array.from({ length: parts + 1 }, (_, k) => k / parts);
    let points = evenly(FRAMES);
    if (!spelled({ solver }) || solver === TUNED || grid !== undefined) {
      const one = await resolved(this.body, signal);
      this.#resolve(one.solver);
      if (one.solver.steps !== undefined) points = [...one.trace.t, 1];
    } else if (steps !== undefined) {
      if (!Number.isInteger(steps) || steps < 1 || steps > 100_000) return undefined; // as above
      points = evenly(steps);
    }
    if (!(frames >= 2)) return undefined;
    const every = Math.ceil((points.length - 1) / frames);
    return points.filter((_, k) => k % every === 0 || k === points.length - 1);
  }
}

const known = new Map();

/** The answer to a request for one sample, which has the solver as resolved and the times of its steps. */
async function resolved(body, signal) {
  const { trace: _, save_at: __, first_index: ___, ...rest } = body;
  const one = { ...rest, ...subjectOf(body, 0), num_samples: 1, seed: 0 };
  const key = api.stringify(one);
  if (!known.has(key)) known.set(key, await api.sample(one, signal));
  return known.get(key);
}

/** One response from two pages of it. */
function joined(first, next, offset) {
  const [n, m] = [first.samples.length, next.samples.length];
  const [p, q] = [first.nfe_per_sample, next.nfe_per_sample];
  const latency = Object.fromEntries(Object.entries(first.latency).map(([part, seconds]) => [part, seconds + next.latency[part]]));
  return {
    ...first,
    samples: first.samples.concat(next.samples),
    shape: [n + m, ...first.shape.slice(1)],
    nfe: Math.max(first.nfe, next.nfe),
    nfe_per_sample: { min: Math.min(p.min, q.min), mean: (n * p.mean + m * q.mean) / (n + m), max: Math.max(p.max, q.max) },
    network_rows: first.network_rows + next.network_rows,
    status: first.status === "success" ? next.status : first.status,
    failed: first.failed.concat(next.failed.map((one) => ({ ...one, index: one.index + offset }))),
    latency,
  };
}

/** States at a time between frames, interpolated; after the last frame, those at the end. */
function between(frames, t, end) {
  if (!frames.length || t === null || (t >= 1 && frames.at(-1).t >= 1)) return { states: end, trails: [] };
  const next = frames.findIndex((frame) => frame.t >= t);
  if (next < 0) return { states: end, trails: frames.map((frame) => frame.states) };
  const trails = frames.slice(0, next).map((frame) => frame.states);
  if (next === 0 || frames[next].t === t) return { states: frames[next].states, trails };
  const [low, high] = [frames[next - 1], frames[next]];
  return { states: mix(low.states, high.states, (t - low.t) / (high.t - low.t)), trails };
}

/** Nested lists of numbers between two others; null where either is. */
export function mix(low, high, share) {
  if (low == null || high == null) return null;
  if (typeof low === "number") return low + (high - low) * share;
  return low.map((value, k) => mix(value, high[k], share));
}
