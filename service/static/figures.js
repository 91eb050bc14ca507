// The cards with the samples: what was asked, the picture, what it cost.
import * as pictures from "./pictures.js";
import * as scatter from "./scatter.js";

const $ = (id) => document.getElementById(id);
const ms = (seconds) => {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  return `${seconds >= 0.0995 ? Math.round(seconds * 1e3) : (seconds * 1e3).toPrecision(2)} ms`;
};
const PARTS = ["queue_s", "solve_s", "encode_s"];

/** Euclidean distances between the endpoints of samples from the same noise; failed samples are left out. */
export function distances(first, second) {
  const found = [];
  first.forEach((state, index) => {
    const other = second[index];
    if (state === null || !other) return;
    const [p, q] = [state.flat(Infinity), other.flat(Infinity)];
    found.push(Math.sqrt(p.reduce((sum, value, k) => sum + (value - q[k]) ** 2, 0)));
  });
  return found.sort((x, y) => x - y);
}

function node(tag, className, text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

function readout(name, value, more = "") {
  const box = node("div", "readout");
  box.append(node("dt", "", name), node("dd", "", value));
  if (more) box.append(node("dd", "quiet", more));
  return box;
}

function costs(answer) {
  const list = node("dl", "readouts");
  const { min, mean, max } = answer.nfe_per_sample;
  const spread = min === max ? "for every sample" : `per sample ${min} to ${max}, mean ${mean.toFixed(1)}`;
  const { latency } = answer;
  list.append(
    readout("NFE", String(answer.nfe), spread),
    readout("Latency", ms(latency.total_s), `network ${ms(latency.network_s)}, queue ${ms(latency.queue_s)}`),
  );
  const bar = node("div", "latency");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", PARTS.map((part) => `${part.slice(0, -2)} ${ms(latency[part])}`).join(", "));
  bar.title = bar.getAttribute("aria-label");
  for (const part of ["queue_s", "network_s", "rest", "encode_s"]) {
    const seconds = part === "rest" ? Math.max(0, latency.solve_s - latency.network_s) : latency[part];
    const piece = node("span", part);
    piece.style.flexGrow = seconds / latency.total_s;
    bar.append(piece);
  }
  return [list, bar];
}

function troubles(answer) {
  if (!answer.failed.length) return answer.deterministic ? [] : [node("p", "quiet", "not deterministic on this machine")];
  const kinds = new Map();
  for (const { status } of answer.failed) kinds.set(status, (kinds.get(status) ?? 0) + 1);
  const text = [...kinds].map(([status, count]) => `${count} × ${status}`).join(", ");
  return [node("p", "warning", `${answer.failed.length} of ${answer.shape[0]} samples did not reach the end: ${text}`)];
}

export class Figures {
  /** @param runs [{side, label, answer, frames?}]; frames is [{t, states}] */
  show(runs, layout) {
    this.runs = runs;
    this.layout = runs.length > 1 ? layout : "side";
    this.shape = runs[0].answer.shape.slice(1);
    this.pictures = pictures.layoutOf(this.shape) !== null;
    if (this.pictures) this.layout = "side";
    $("layout-bar").hidden = runs.length < 2;
    $("over").disabled = this.pictures;
    for (const name of ["side", "over"]) $(name).setAttribute("aria-pressed", String(this.layout === name));
    $("cards").dataset.layout = this.layout;
    $("results").dataset.runs = runs.length;
    $("cards").replaceChildren(...this.#cards());
    this.#distance();
    const lists = runs.flatMap((run) => [run.answer.samples, ...(run.frames ?? []).map((frame) => frame.states)]);
    this.bounds = this.pictures ? pictures.scale(lists) : scatter.range(lists);
    this.paint(null);
  }

  #cards() {
    const groups = this.layout === "over" ? [this.runs] : this.runs.map((run) => [run]);
    return groups.map((group) => {
      const card = node("article", "card figure");
      const canvas = node("canvas", "");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", group.map((run) => this.#alt(run)).join("; "));
      for (const run of group) {
        const head = node("h2", run.side);
        head.append(node("span", "key"), run.label);
        const about = node("p", "quiet", `${run.answer.model} v${run.answer.version}, seed ${run.answer.seed}`);
        const told = node("div", "told");
        told.append(head, about, ...costs(run.answer), ...troubles(run.answer));
        card.append(told);
      }
      canvas.style.gridColumn = "1 / -1";
      card.append(canvas);
      if (!this.pictures && this.shape[0] > 2) card.append(node("p", "quiet", `the first 2 of ${this.shape[0]} numbers`));
      canvas.runs = group;
      return card;
    });
  }

  #alt({ label, answer }) {
    const what = this.pictures ? `pictures of ${this.shape.join(" by ")}` : "points";
    return `${answer.shape[0]} samples of ${answer.model} by ${label} as ${what}`;
  }

  #distance() {
    if (this.runs.length < 2) return;
    const [a, b] = this.runs.map((run) => run.answer);
    const found = distances(a.samples, b.samples);
    const mean = found.reduce((sum, value) => sum + value, 0) / found.length;
    const short = (value) => value.toPrecision(3);
    $("distance").replaceChildren(
      ...(found.length
        ? [
            "Distance of the endpoints from the same noise: mean ", node("strong", "", short(mean)),
            `, median ${short(found[found.length >> 1])}, greatest ${short(found.at(-1))}. `,
            `NFE ${a.nfe} against ${b.nfe}.`,
          ]
        : ["No sample reached the end in both."]),
    );
  }

  /** Draw the samples as they end (t is null), or as they were at a time; between frames a state is interpolated. */
  paint(t = this.t ?? null) {
    this.t = t;
    for (const canvas of $("cards").querySelectorAll("canvas")) {
      const layers = canvas.runs.map((run) => ({ side: run.side, ...at(run, t) }));
      if (this.pictures) pictures.draw(canvas, layers[0].states, this.shape, this.bounds);
      else scatter.draw(canvas, layers, this.bounds, this.layout === "over");
    }
  }
}

function at({ answer, frames }, t) {
  if (!frames?.length || t === null) return { states: answer.samples };
  const next = frames.findIndex((frame) => frame.t >= t);
  if (next < 0) return { states: answer.samples, trails: frames.map((frame) => frame.states) };
  const trails = frames.slice(0, next).map((frame) => frame.states);
  if (next === 0 || frames[next].t === t) return { states: frames[next].states, trails };
  const [low, high] = [frames[next - 1], frames[next]];
  const share = (t - low.t) / (high.t - low.t);
  return { states: mix(low.states, high.states, share), trails };
}

function mix(low, high, share) {
  if (low === null || high === null) return null;
  if (typeof low === "number") return low + (high - low) * share;
  return low.map((value, k) => mix(value, high[k], share));
}
