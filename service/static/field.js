// Velocity field and log-density behind the points of a two-dimensional model, at every t.
import * as api from "./api.js";
import { mix } from "./drawing.js";
import { line } from "./problem.js";

const ARROWS = 18; // along each side
const TIMES = 20; // parts of [0, 1]; both are known at the ends of each, and interpolated in between
const STEP = 0.01; // of t, over which the velocity is the difference of two states
const CELLS = 48; // of noise along each side; the flow carries their mass
const EDGE = 3.5; // standard deviations of noise that they cover
const DEPTH = 12; // nats shown below the greatest log-density

/**
 * The velocity field on a grid of the plane.
 * @param base see `subject` @param bounds of the plane, {x: [low, high], y: [low, high]}
 * @returns {Promise<{points: number[][], frames: number[][][]}>} (n, 2), and velocities (n, 2) at each time
 */
export async function velocityField(base, bounds, signal, report) {
  const { toState, points } = await grid(base, bounds, signal);
  const x0 = points.map(toState);
  const frames = [];
  for (let k = 0; k <= TIMES; k++) {
    const t = k / TIMES;
    const end = k === TIMES ? t - STEP : t + STEP;
    const body = { ...base, num_samples: x0.length, x0, t_span: [t, end], solver: "euler", steps: 1 };
    const { samples } = await api.background(body, signal);
    frames.push(samples.map((state, i) => state && state.map((value, d) => (value - points[i][d]) / (end - t))));
    report(k / TIMES);
  }
  return { points, frames };
}

/** Points of the plane, and the map from them to states: found by decoding three states, as decoders here are affine. */
async function grid(base, bounds, signal) {
  const ask = { ...base, num_samples: 3, x0: [[0, 0], [1, 0], [0, 1]], t_span: [0, STEP], save_at: [0] };
  const { saved } = await api.background({ ...ask, solver: "euler", steps: 1 }, signal);
  const [o, p, q] = saved.states.map(([state]) => state);
  const [a, b, c, d] = [p[0] - o[0], q[0] - o[0], p[1] - o[1], q[1] - o[1]];
  const volume = a * d - b * c;
  const toState = ([x, y]) => [(d * (x - o[0]) - b * (y - o[1])) / volume, (a * (y - o[1]) - c * (x - o[0])) / volume];
  const along = ([low, high]) => Array.from({ length: ARROWS }, (_, k) => low + ((high - low) * (k + 0.5)) / ARROWS);
  return { toState, points: along(bounds.x).flatMap((x) => along(bounds.y).map((y) => [x, y])) };
}

/**
 * The density that the flow makes of the noise: cells of noise keep their mass while the flow moves their corners, so
 * the mean density in a cell is its mass over the area that it covers at t.
 * @returns {Promise<{frames: number[][][], mass: number[]}>} corners ((CELLS + 1)^2, 2) at each time; mass of each cell
 */
export async function densityMesh(base, signal) {
  const edges = Array.from({ length: CELLS + 1 }, (_, k) => EDGE * ((2 * k) / CELLS - 1));
  const x0 = edges.flatMap((x) => edges.map((y) => [x, y]));
  const times = Array.from({ length: TIMES + 1 }, (_, k) => k / TIMES);
  const solver = { solver: "rk4", steps: TIMES, save_at: times };
  const { saved } = await api.background({ ...base, num_samples: x0.length, x0, ...solver }, signal);
  const frames = times.map((_, k) => saved.states.map((states) => states[k]));
  const share = edges.slice(1).map((high, k) => gauss((high + edges[k]) / 2) * (high - edges[k]));
  return { frames, mass: share.flatMap((x) => share.map((y) => x * y)) };
}

const triangle = (p, q, r) => Math.abs((q[0] - p[0]) * (r[1] - p[1]) - (r[0] - p[0]) * (q[1] - p[1])) / 2;
const gauss = (z) => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI);

/** The frame at a time in [0, 1], interpolated. */
function frameAt(frames, t) {
  const place = t * TIMES;
  const k = Math.min(TIMES - 1, Math.floor(place));
  return place === k ? frames[k] : mix(frames[k], frames[k + 1], place - k);
}

/** Velocity field and log-density of one model, drawn behind its samples. */
export class Field {
  velocity = null;
  mesh = null;
  #loaded = { velocity: "", mesh: "" }; // keys of the subjects they were computed for
  #running = null;

  /**
   * Compute what is wanted, and drop everything else.
   * @param base see `subject` @param bounds of the plane, see `velocityField`
   * @param wanted {velocity, density} @param report called with a text on the computation under way, "" at the end
   */
  async want(base, bounds, wanted, report) {
    this.#running?.abort();
    const { signal } = (this.#running = new AbortController());
    const of = api.stringify(base);
    const need = { velocity: wanted.velocity && of + api.stringify(bounds), mesh: wanted.density && of };
    for (const part of ["velocity", "mesh"]) if (this.#loaded[part] !== need[part]) this[part] = this.#loaded[part] = null;
    try {
      if (need.velocity && !this.velocity) {
        this.velocity = await velocityField(base, bounds, signal, (share) => report(`velocity field, ${Math.round(100 * share)} %`));
        this.#loaded.velocity = need.velocity;
      }
      if (need.mesh && !this.mesh) {
        report("log-density …");
        this.mesh = await densityMesh(base, signal);
        this.#loaded.mesh = need.mesh;
      }
      report("");
    } catch (error) {
      if (error.name !== "AbortError") report(line(error));
    }
  }

  paint(pen, paint, toX, toY, t) {
    if (this.mesh) this.#density(pen, paint, toX, toY, frameAt(this.mesh.frames, t));
    if (this.velocity) this.#arrows(pen, paint, toX, toY, frameAt(this.velocity.frames, t));
  }

  #arrows(pen, paint, toX, toY, velocities) {
    const { points } = this.velocity;
    const speed = (v) => (v ? Math.hypot(...v) : 0);
    this.velocity.most ??= this.velocity.frames.flat().reduce((most, v) => Math.max(most, speed(v)), 1e-12);
    const long = (1.1 * (toX(points.at(-1)[0]) - toX(points[0][0]))) / (ARROWS - 1);
    const [wide, tall] = [toX(1) - toX(0), toY(0) - toY(1)]; // pixels of a unit
    pen.strokeStyle = pen.fillStyle = paint.quiet;
    pen.lineWidth = 1.1;
    pen.globalAlpha = 0.8;
    points.forEach(([px, py], k) => {
      const v = velocities[k];
      if (!v) return;
      const length = long * Math.sqrt(speed(v) / this.velocity.most); // slow ones can be seen, too
      const angle = Math.atan2(-v[1] * tall, v[0] * wide);
      const [x, y] = [toX(px), toY(py)];
      const [dx, dy] = [(length / 2) * Math.cos(angle), (length / 2) * Math.sin(angle)];
      pen.beginPath();
      pen.moveTo(x - dx, y - dy);
      pen.lineTo(x + dx, y + dy);
      for (const turn of [2.6, -2.6]) {
        pen.moveTo(x + dx, y + dy);
        pen.lineTo(x + dx + 3.5 * Math.cos(angle + turn), y + dy + 3.5 * Math.sin(angle + turn));
      }
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }

  #density(pen, paint, toX, toY, corners) {
    this.mesh.most ??= this.#most();
    const { most } = this.mesh;
    pen.fillStyle = pen.strokeStyle = paint.heat;
    pen.lineWidth = 0.5;
    this.#cells(corners, (cell, value) => {
      const share = Math.min(1, 1 - (most - value) / DEPTH);
      if (!(share > 0)) return;
      pen.globalAlpha = 0.75 * share * share;
      pen.beginPath();
      for (const corner of cell) pen.lineTo(toX(corner[0]), toY(corner[1]));
      pen.closePath();
      pen.fill();
    });
    pen.globalAlpha = 1;
  }

  /** The log-density that only a hundredth of the mass exceeds: a cell that the flow folded may have any value. */
  #most() {
    return this.mesh.frames.reduce((greatest, frame) => {
      const cells = [];
      this.#cells(frame, (_, value, mass) => cells.push([value, mass]));
      cells.sort((p, q) => q[0] - p[0]);
      let above = 0;
      return Math.max(greatest, cells.find(([, mass]) => (above += mass) > 0.01)?.[0] ?? -Infinity);
    }, -Infinity);
  }

  /** Call `each` with the four corners of every cell, its log-density and its mass. */
  #cells(corners, each) {
    const row = CELLS + 1;
    for (let i = 0; i < CELLS; i++) {
      for (let j = 0; j < CELLS; j++) {
        const at = i * row + j;
        const cell = [corners[at], corners[at + row], corners[at + row + 1], corners[at + 1]];
        if (cell.some((corner) => !corner)) continue;
        const [p, q, r, s] = cell;
        const area = Math.max(triangle(p, q, r) + triangle(p, r, s), triangle(p, q, s) + triangle(q, r, s));
        const mass = this.mesh.mass[i * CELLS + j];
        if (area > 0) each(cell, Math.log(mass / area), mass);
      }
    }
  }
}
