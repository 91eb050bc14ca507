// The cards of the samples: the request, the picture, its cost and its error.
import { blend, colours } from "./canvas.js";
import { $, make, titled } from "./dom.js";
import * as pictures from "./pictures.js";
import * as scatter from "./scatter.js";
import { distances, finished, mean, percent } from "./statistics.js";
import { what } from "./terms.js";

const PARTS = ["queue_s", "solve_s", "encode_s"];

export function ms(seconds) {
  if (seconds >= 0.9995) return `${seconds >= 10 ? seconds.toFixed(1) : seconds.toPrecision(3)} s`;
  return `${seconds >= 0.0995 ? Math.round(seconds * 1e3) : (seconds * 1e3).toPrecision(2)} ms`;
}

function readout(term, name, value, more) {
  const head = make("dt", {}, name, what(term, name));
  return make("div", { class: "readout" }, head, make("dd", {}, String(value)), make("dd", { class: "quiet" }, more ?? ""));
}

/** The service's choice for a budget, in its words. */
function promise({ solver, predicted_ms: time, reason }) {
  return make("p", { class: "promise" }, make("strong", {}, `The service chose ${solver}`), `: ${reason}; about ${ms(time / 1000)} of solving.`);
}

/** Cost and error of a run as a list, with dots until they are known, so that nothing moves then. */
function readouts({ response, errors }) {
  const { nfe, nfe_per_sample: each, latency } = response ?? {};
  const spent = each && (each.min === each.max ? "every sample" : `${each.min}–${each.max}, mean ${each.mean.toFixed(1)}`);
  return make(
    "dl", { class: "readouts" },
    readout("nfe", "NFE", nfe ?? "…", spent),
    readout("latency", "Latency", latency ? ms(latency.total_s) : "…", latency && `network ${ms(latency.network_s)}`),
    readout("error", "Error", errors ? percent(errors.p95) : errors === null ? "–" : "…", errors && `worst ${percent(errors.worst)}`),
  );
}

function latencyBar({ latency }) {
  const text = PARTS.map((part) => `${part.slice(0, -2)} ${ms(latency[part])}`).join(", ");
  const bar = make("div", { class: "latency", role: "img", "aria-label": text, title: text });
  for (const part of ["queue_s", "network_s", "rest", "encode_s"]) {
    const piece = make("span", { class: part });
    piece.style.flexGrow = (part === "rest" ? Math.max(0, latency.solve_s - latency.network_s) : latency[part]) / latency.total_s;
    bar.append(piece);
  }
  return bar;
}

function troubles(run) {
  const { response, body } = run;
  const notes = [];
  if (!response) return notes;
  if (!response.deterministic) notes.push(make("p", { class: "quiet" }, "not deterministic on this machine"));
  if (response.samples.length < body.num_samples) {
    const share = `${response.samples.length.toLocaleString("en")} of ${body.num_samples.toLocaleString("en")} samples`;
    notes.push(make("p", { class: run.ended ? "warning" : "quiet" }, `${share}${run.ended ? " were drawn" : " so far"}`));
  }
  if (response.failed.length) {
    const kinds = new Map();
    for (const { status } of response.failed) kinds.set(status, (kinds.get(status) ?? 0) + 1);
    const text = [...kinds].map(([status, count]) => `${count} × ${status}`).join(", ");
    notes.push(make("p", { class: "warning" }, `${response.failed.length} of ${response.shape[0]} samples did not reach the end: ${text}`));
  }
  return notes;
}

export class Figures {
  /** @param pick called with the index of a sample that is clicked */
  constructor(pick) {
    this.runs = [];
    this.selected = null;
    this.paths = {}; // by side: path and steps of the chosen sample
    this.colour = "";
    this.field = null; // draws the background of the points
    this.real = []; // some real data, drawn beneath the points
    this.axes = [0, 1]; // which numbers of a sample are x and y
    $("cards").addEventListener("click", (event) => {
      const canvas = event.target;
      const index = canvas.places ? scatter.nearest(canvas, event.offsetX, event.offsetY) : pictures.at(canvas, event.offsetX, event.offsetY);
      if (index !== null) pick(index);
    });
  }

  /** Show runs: as cards side by side, or as one card with both: points overlaid, pictures subtracted. */
  show(runs, layout) {
    this.runs = runs;
    this.layout = runs.length > 1 ? layout : "side";
    this.shape = runs[0].shape;
    this.pictures = pictures.layoutOf(this.shape) !== null;
    this.planar = this.shape.length === 1 && this.shape[0] === 2;
    for (const element of document.querySelectorAll(".planar")) element.hidden = !this.planar;
    $("over").textContent = this.pictures ? "Difference" : "Overlaid";
    for (const name of ["side", "over"]) $(name).setAttribute("aria-pressed", String(this.layout === name));
    $("cards").dataset.layout = this.layout;
    document.documentElement.dataset.runs = runs.length;
    this.#offerAxes();
    const groups = this.layout === "over" ? [runs] : runs.map((run) => [run]);
    $("cards").replaceChildren(...groups.map((group) => this.#card(group)));
    this.measure();
    this.paint();
  }

  /** Whether a sample has more numbers than a figure has axes. */
  get wide() {
    return this.shape.length === 1 && this.shape[0] > 2;
  }

  /** The names of the numbers of a sample: of the columns, or of their places. */
  get names() {
    const columns = this.runs.find((run) => run.response)?.response.columns;
    if (columns) return columns.map(titled);
    return this.wide ? Array.from({ length: this.shape[0] }, (_, k) => `number ${k}`) : [];
  }

  /** Offer the numbers of a sample as x and y. */
  #offerAxes() {
    const most = this.shape.length === 1 ? this.shape[0] : 0;
    if (this.axes.some((axis) => axis >= most)) this.axes = [0, 1];
    $("axes").hidden = !this.wide;
    ["axis-x", "axis-y"].forEach((id, k) => {
      $(id).replaceChildren(...(this.wide ? this.names : []).map((name, place) => make("option", { value: place }, name)));
      $(id).value = this.axes[k];
    });
  }

  /** Draw these two numbers of each sample. */
  choose(axes) {
    this.axes = axes;
    if (!this.runs.length) return;
    this.show(this.runs, this.layout);
  }

  /** Measure the range of the figures anew. */
  measure() {
    Object.assign(this, { extent: null, seen: new WeakSet() });
    if (!this.pictures) for (const { states } of this.runs.flatMap((run) => run.frames)) this.#take(states, scatter.extent, true);
    this.widen();
  }

  #card(group) {
    const card = make("article", { class: "card figure" });
    for (const run of group) {
      run.summary = make("div", { class: `summary ${run.side}` });
      card.append(run.summary);
      this.describe(run);
    }
    const canvas = make("canvas", { role: "img" });
    canvas.runs = group;
    card.append(canvas);
    this.#name(canvas);
    return card;
  }

  #name(canvas) {
    const what = this.pictures ? `pictures of ${this.shape.join(" by ")}` : "points";
    const names = canvas.runs.map(({ label, body }) => `${body.num_samples} samples of ${body.model} by ${label} as ${what}`);
    canvas.setAttribute("aria-label", names.join("; "));
  }

  /** Update the text about a run. */
  describe(run) {
    const { response, body, side, label } = run;
    const version = response ? ` v${response.version}` : "";
    run.summary.replaceChildren(
      make("div", { class: "head" },
        make("h2", { class: side }, make("span", { class: "key", "aria-hidden": "true" }), label),
        make("p", { class: "quiet" }, `${body.model}${version}, seed ${body.seed}`)),
      ...(response?.budget ? [promise(response.budget)] : []),
      readouts(run),
      ...(response ? [latencyBar(response)] : []),
      ...troubles(run),
    );
    for (const canvas of $("cards").querySelectorAll("canvas")) if (canvas.runs?.includes(run)) this.#name(canvas);
  }

  /** Widen the range of the figures to all that has arrived since the last call. */
  widen() {
    const kind = this.pictures ? pictures : scatter;
    for (const { response, page } of this.runs) {
      for (const { states } of page?.frames ?? []) this.#take(states, kind.extent, true);
      if (response) this.#take(response.samples, kind.extent, false);
    }
    if (!this.pictures && this.real.length) this.#take(this.real, kind.extent, false);
    this.bounds = this.pictures ? pictures.scale(this.extent ?? [[0, 1]]) : scatter.range(this.extent ?? [[-3, 3], [-3, 3]], this.names.length > 0);
    if ($("axis-x").options[0]?.textContent !== this.names[0] && this.wide) this.#offerAxes(); // a response has their names
  }

  #take(states, extent, onTheWay) {
    if (this.seen.has(states)) return;
    this.seen.add(states);
    const bounds = extent(states, onTheWay, this.axes);
    this.extent = this.extent?.map(([low, high], k) => [Math.min(low, bounds[k][0]), Math.max(high, bounds[k][1])]) ?? bounds;
  }

  /** Move all runs to a time (null: the end). */
  move(t) {
    for (const run of this.runs) run.t = t;
    this.paint();
  }

  paint() {
    for (const canvas of $("cards").querySelectorAll("canvas")) {
      if (this.pictures) this.#sheet(canvas);
      else this.#plot(canvas);
    }
  }

  #plot(canvas) {
    const layers = canvas.runs.map((run) => {
      const { path, steps, fan = [] } = this.paths[run.side] ?? {};
      return { side: run.side, ...run.shown, colour: this.#colours(run), path: path && { path, steps, fan } };
    });
    const t = canvas.runs[0].t ?? 1;
    const under = this.field && ((pen, paint, toX, toY) => this.field.paint(pen, paint, toX, toY, t));
    const names = this.names.length ? this.axes.map((axis) => this.names[axis]) : [];
    const { selected, axes, real } = this;
    scatter.draw(canvas, layers, this.bounds, { links: this.layout === "over", selected, under, real, axes, names });
  }

  #sheet(canvas) {
    const states = canvas.runs.map((run) => run.shown.states);
    const options = { selected: this.selected, frame: this.#colours(canvas.runs[0]) ?? undefined };
    if (canvas.runs.length === 1) pictures.draw(canvas, states[0], this.shape, this.bounds, options);
    else {
      const { states: apart, scale } = pictures.differences(states[0], states[1]);
      pictures.draw(canvas, apart, this.shape, scale, { selected: this.selected });
    }
  }

  /** The colour of each sample of a run, or null if it is the solver's. */
  #colours(run) {
    const values = this.valuesOf(run);
    if (!values || !this.scale) return null;
    const { low, high, quiet } = colours();
    const [least, most] = this.scale;
    return (index) => {
      const value = values[index];
      if (value === null || value === undefined) return quiet;
      return blend(low, high, most > least ? Math.min(1, Math.max(0, (value - least) / (most - least))) : 0);
    };
  }

  /** The values that the colour shows, one for each sample; null if they are not known (yet). */
  valuesOf(run) {
    if (this.colour === "nfe") return run.nfe ?? null;
    if (this.colour === "error") return run.errors?.each.map((value) => value && Math.log10(value)) ?? null;
    return null;
  }

  /** Colour by "nfe", "error" or "" (the solver), with one scale for all figures, and show the scale. */
  paintBy(colour) {
    this.colour = colour;
    const values = this.runs.flatMap((run) => this.valuesOf(run) ?? []).filter(Number.isFinite);
    const [low, high] = [values.reduce((p, q) => Math.min(p, q), Infinity), values.reduce((p, q) => Math.max(p, q), -Infinity)];
    this.scale = values.length ? [low, high] : null;
    const name = (value) => (colour === "error" ? percent(10 ** value) : String(value));
    $("scale").hidden = !this.scale;
    if (this.scale) $("scale").replaceChildren(name(low), make("span", { class: "ramp", "aria-hidden": "true" }), name(high));
    this.paint();
  }
}

/** How far apart two runs end, as a sentence; empty if there is only one run. */
export function apart([a, b]) {
  if (!a?.response || !b?.response) return "";
  const gaps = distances(finished(a.response), finished(b.response)).filter((value) => value !== null).sort((x, y) => x - y);
  if (!gaps.length) return "No sample reached the end with both solvers.";
  if (gaps.at(-1) === 0) return "All samples end at the same points with both solvers.";
  const [short, middle, most] = [mean(gaps), gaps[gaps.length >> 1], gaps.at(-1)].map((value) => value.toPrecision(3));
  return `Distance between endpoints from the same noise: mean ${short}, median ${middle}, greatest ${most}.`;
}
