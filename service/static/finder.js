// Find my solver: stored and fresh measurements of the service in one chart and one table, and its verdict for a budget.
import * as api from "./api.js";
import { colours } from "./canvas.js";
import { chart, logRange } from "./chart.js";
import { drawn, each } from "./conditions.js";
import { $, button, make } from "./dom.js";
import { ms } from "./figures.js";
import { line } from "./problem.js";
import { percent } from "./statistics.js";
import { what } from "./terms.js";

const SAMPLES = 512;
const LEAST = 90; // samples for which p95 has an interval
const TRY = "Measure now";
const USUAL = 0.01; // the budget of error at first, as a share of the spread

const adaptive = (point) => point.solver.includes("@"); // other samples may take more evaluations than those measured

/** @typedef {{solver: string, nfe_most: number, nfe: number, p50: number, p95: number, p95_low: number, p95_high: number, worst: number, failed: number, samples: number, seed: number, conditions: string, stored: boolean, own_conditions: boolean, best: boolean, ms?: number}} Point */

const curveOf = (frontier, guidance) => frontier?.curves.find((one) => (one.guidance ?? 1) === Number(guidance || 1));

/** The cheapest solver of a stored frontier that keeps the usual error, or null. @param guidance as in the form */
export function recommended(frontier, guidance) {
  const points = curveOf(frontier, guidance)?.points ?? [];
  const fits = points.filter((point) => point.p95_high !== null && point.p95_high <= USUAL);
  return fits.reduce((best, point) => (best && best.nfe_most <= point.nfe_most ? best : point), null);
}

export class Finder {
  /** @param base returns {body, own} of the model to measure; own: the solvers in the form, as text @param load called with the text of a solver that is chosen */
  constructor(base, load) {
    Object.assign(this, { base, load, running: null, chosen: null }); // chosen: the budget at which the user put the slider
    this.reset();
    $("find").addEventListener("click", () => (this.running ? this.running.abort() : this.run()));
    $("budget-kind").addEventListener("change", () => {
      this.chosen = null;
      this.#place();
    });
    $("budget").addEventListener("input", () => {
      this.chosen = this.#budget;
      this.#recommend();
    });
  }

  /** Forget the results if they are of another model, condition or guidance. @param key names all of them */
  of(key) {
    if (this.key !== key) {
      this.reset();
      this.chosen = null;
    }
    this.key = key;
  }

  reset() {
    this.running?.abort();
    /** @type {Point[]} */
    this.points = [];
    this.own = [];
    this.verdict = this.tuned = "";
    $("found").hidden = true;
    $("finder-busy").textContent = "";
    $("find").textContent = TRY;
  }

  /** Show a model's stored measurements, unless something was measured already. @param guidance as in the form */
  stored(frontier, guidance) {
    if (this.points.length || this.running) return;
    const curve = curveOf(frontier, guidance);
    if (!curve) return;
    const facts = { stored: true, samples: curve.samples, seed: curve.seed, own_conditions: !frontier.conditions, conditions: frontier.conditions };
    this.points = curve.points.map((point) => ({ ...point, ...facts }));
    this.#place();
  }

  /** Let the service measure the candidates and the solvers in the form, and join them with what is stored. */
  async run() {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    const { key } = this;
    $("find").textContent = "Cancel";
    const busy = (text) => ($("finder-busy").textContent = text);
    try {
      const { body, own } = this.base();
      const count = each(body) ? body.num_samples : Math.max(LEAST, SAMPLES);
      const ask = { ...drawn(body), model: undefined, seed: body.seed, num_samples: count, solvers: [...own, "candidates"] };
      const fresh = [];
      busy("solving the reference …");
      for await (const { event, data } of api.measure(body.model, ask, signal)) {
        if (this.key !== key) return; // another model was chosen meanwhile
        if (event === "point" && data.p95_high !== null) {
          fresh.push(data);
          busy(`${fresh.length} solvers measured, now ${data.solver} …`);
        }
        if (event !== "completed") continue;
        Object.assign(this, { points: data.points, own, verdict: data.verdict, tuned: data.tuned });
        busy(data.complete ? "" : "time ran out before all solvers were measured");
      }
      this.#place();
    } catch (error) {
      busy(error.name === "AbortError" ? "cancelled" : line(error));
    }
    this.running = null;
    $("find").textContent = this.points.length ? "Measure again" : TRY;
  }

  get #byError() {
    return $("budget-kind").value === "error";
  }

  /** The ends of the slider's scale, which is logarithmic. */
  get #ends() {
    const values = this.points.map((point) => (this.#byError ? point.p95_high : point.nfe_most)).filter((value) => value > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return this.#byError ? [Math.min(low, USUAL) / 1.5, Math.max(high, USUAL) * 1.5] : [low, high];
  }

  get #budget() {
    const [low, high] = this.#ends;
    return low * (high / low) ** Number($("budget").value);
  }

  /** Put the slider at the chosen budget or, until one is chosen, where most people would begin. */
  #place() {
    if (!this.points.length) return;
    const [low, high] = this.#ends;
    const usual = this.#byError ? USUAL : Math.min(high, 40);
    const budget = Math.min(Math.max(this.chosen ?? usual, low), high);
    $("budget").value = high > low ? Math.log(budget / low) / Math.log(high / low) : 1;
    this.#recommend();
  }

  /** The point for the budget, looked up in the service's table, which begins with the cheapest solver. */
  get best() {
    const own = this.points.filter((point) => point.own_conditions);
    const points = own.length ? own : this.points;
    const budget = this.#budget * (1 + 1e-9);
    if (this.#byError) return points.find((point) => point.p95_high <= budget) ?? null;
    const allowed = points.filter((point) => point.nfe_most <= budget && !adaptive(point));
    return allowed.reduce((best, point) => (best && best.p95_high <= point.p95_high ? best : point), null);
  }

  /** What could be met if nothing is within the budget, in words. */
  get #nearest() {
    const [by, name] = this.#byError ? ["p95_high", "most accurate"] : ["nfe_most", "cheapest"];
    const point = this.points.reduce((least, one) => (one[by] < least[by] ? one : least));
    return `${name} is ${point.solver} (keeps ${percent(point.p95_high)}, ${point.nfe_most} NFE)`;
  }

  /** The rows and dots that are shown: those that no other beats, those in the form, and the chosen one. */
  get #shown() {
    const { best } = this;
    return this.points.filter((point) => point.best || point === best || this.own.includes(point.solver));
  }

  #recommend() {
    const { best } = this;
    const budget = this.#byError ? `${percent(this.#budget)} of the spread` : `${Math.round(this.#budget)} evaluations`;
    $("found").hidden = false;
    $("budget-value").textContent = budget;
    $("budget").setAttribute("aria-valuetext", budget);
    const why = this.#byError ? `the cheapest that keeps ${budget}` : `the most accurate within ${budget}`;
    $("recommended").replaceChildren(
      ...(best
        ? [
            make("strong", {}, `${best.solver}: ${best.nfe_most} evaluations, 95 % of samples end within ${percent(best.p95_high)}`),
            what("spread", "the spread"),
            ` of the spread from the exact ends of their paths (p95 ${percent(best.p95)}, interval ${percent(best.p95_low)} to ${percent(best.p95_high)}), ${evidence(best)}; ${why}. `,
            button("Use it", () => this.load(best.solver)),
          ]
        : [`No measured solver ${this.#byError ? "keeps" : "is within"} ${budget}; the ${this.#nearest}.`]),
      ...(this.tuned ? [make("span", { class: "quiet" }, ` ${this.tuned[0].toUpperCase()}${this.tuned.slice(1)}.`)] : []),
    );
    this.#table(best);
    this.draw();
  }

  #table(best) {
    const head = ["Solver", "NFE", "p50", "p95", "Promised", "Worst", "Time", "Measured", "Use"].map((text) => make("th", { scope: "col" }, text));
    head[4].append(what("promised", "what is promised"));
    const rows = this.#shown.map((point) => {
      const worst = point.failed ? `${percent(point.worst)}, ${point.failed} failed` : percent(point.worst);
      const cells = [point.nfe_most, percent(point.p50), percent(point.p95), percent(point.p95_high), worst, point.ms === undefined ? "–" : ms(point.ms / 1000), source(point)];
      const use = button("Use", () => this.load(point.solver), { "aria-label": `Use ${point.solver}` });
      const yours = this.own.includes(point.solver) ? [make("span", { class: "quiet" }, " yours")] : [];
      const parts = point.solver.match(/[^/]+\/?/g); // a long name breaks before its grid, so that narrow screens show the button
      const name = make("th", { scope: "row" }, ...parts.flatMap((part, k) => (k ? [make("wbr"), part] : [part])), ...yours);
      const row = make("tr", {}, name, ...cells.map((cell) => make("td", {}, String(cell))), make("td", {}, use));
      if (point === best) row.setAttribute("aria-current", "true");
      return row;
    });
    $("candidates").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  }

  /** Draw the chart: dots are fresh measurements, squares stored ones. */
  draw() {
    const known = this.points.filter((point) => point.p95_high > 0);
    if (!known.length) return;
    const paint = colours();
    const { best } = this;
    const shown = this.#shown;
    const budget = this.#budget;
    const rule = this.#byError ? { axis: "y", at: 100 * budget, colour: paint.b } : { axis: "x", at: budget, colour: paint.b };
    const roomy = $("frontier").clientWidth > 500; // on narrow screens the names would overlap
    const series = [["measured beforehand", true, "square"], ["measured now", false, "circle"]].map(([name, stored, symbol]) => {
      const points = known.filter((point) => point.stored === stored);
      return {
        name, symbol, legend: true, kind: "points", colour: paint.a,
        x: points.map((point) => point.nfe_most), y: points.map((point) => 100 * point.p95_high),
        colours: points.map((point) => (point === best ? paint.b : shown.includes(point) ? paint.a : paint.quiet)),
        sizes: points.map((point) => (point === best ? 15 : shown.includes(point) ? 9 : 5)),
        texts: points.map((point) => (point === best || (roomy && this.own.includes(point.solver)) ? point.solver : "")),
        below: points.map((point) => point === best),
        hover: (k) => `${points[k].solver}: ${points[k].nfe_most} NFE, ${percent(points[k].p95_high)} of the spread, ${source(points[k])}`,
        pick: (k) => this.load(points[k].solver),
      };
    });
    const axis = (title, values) => ({ title, log: true, range: logRange(values, 2, 0.12) });
    const [x, y] = [known.map((point) => point.nfe_most), known.map((point) => 100 * point.p95_high)];
    const [xs, ys] = this.#byError ? [x, [...y, rule.at]] : [[...x, rule.at], y];
    const used = series.filter((one) => one.x.length);
    chart($("frontier"), { series: used, x: axis("NFE", xs), y: axis("95 % of samples end within, % of the spread", ys), height: 360, rule });
  }
}

/** What a measurement rests on, in the words of the service. */
function evidence({ stored, samples, seed, own_conditions: own, conditions }) {
  const text = `measured ${stored ? "beforehand" : "now"} on ${samples} samples of seed ${seed}`;
  return conditions ? `${text}, with ${conditions}${own ? "" : ", not the conditions of this request"}` : text;
}

/** The same in a table. */
function source({ stored, samples, own_conditions: own, conditions }) {
  return `${stored ? "before" : "now"}, ${samples} samples${conditions && !own ? `, ${conditions}` : ""}`;
}
