// Find my solver: candidates on the same noise in a chart of NFE and error, and the best of them for a budget.
import * as api from "./api.js";
import { colours } from "./canvas.js";
import { chart, logRange } from "./chart.js";
import { drawn, each } from "./conditions.js";
import { $, button, make } from "./dom.js";
import { ms } from "./figures.js";
import { line } from "./problem.js";
import { errors, percent } from "./statistics.js";
import { what } from "./terms.js";
import { reference } from "./verdict.js";

/** The solvers that `pathline compare` tries, too: from cheap to accurate. */
const CANDIDATES = [
  "euler-10", "euler-20", "euler-50", "midpoint-10", "midpoint-20", "rk4-5", "rk4-10", "rk4-20", "dopri5@1e-3", "dopri5@1e-5",
];
const SAMPLES = 256;
const TRY = "Try ten solvers and yours";
const USUAL = 0.01; // the budget of error at first, as a share of the spread

/** @typedef {{text: string, nfe: number, mean: number, seconds: number | null, error: number | null, failed: number}} Candidate */

export class Finder {
  /** @param base returns {body, dtype} of the model to try, the members of requests for the solvers in the form as `own`, and the texts of those `tuned` for the model @param load called with the text of a solver that is chosen */
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
    /** @type {Candidate[]} */
    this.found = [];
    $("found").hidden = true;
    $("finder-busy").textContent = "";
    $("find").textContent = TRY;
  }

  /** Draw a model's stored measurements, unless something was tried already. @param guidance as in the form */
  async stored(model, guidance) {
    const { key } = this;
    const found = await api.get(`v1/models/${encodeURIComponent(model)}/frontier`).catch(() => null); // then solvers can still be tried
    if (this.key !== key || this.found.length || this.running) return;
    const curve = found?.curves.find((one) => (one.guidance ?? 1) === Number(guidance || 1));
    if (!curve) return;
    this.own = [];
    this.reference = "the exact ends, or closer, for 95 % of samples (measured beforehand)";
    this.found = curve.points
      .filter((one) => one.best)
      .map((one) => ({ text: one.solver, nfe: one.nfe_most, mean: one.nfe, seconds: null, error: one.p95_high, failed: one.failed }));
    this.#place();
  }

  async run() {
    this.reset();
    const { signal } = (this.running = new AbortController());
    $("find").textContent = "Cancel";
    const busy = (text) => ($("finder-busy").textContent = text);
    try {
      const { body, dtype, own, tuned } = this.base();
      this.own = [];
      const candidates = [...own, ...[...CANDIDATES, ...tuned].map((solver) => ({ solver }))];
      const { seed } = body;
      const whole = each(body) ? body.num_samples : SAMPLES;
      busy("solving the reference …");
      const exact = await reference(body, dtype, signal, SAMPLES);
      this.reference = exact.label;
      for (const [k, members] of candidates.entries()) {
        busy(`${k} of ${candidates.length}: ${members.solver} …`);
        if (this.found.some((one) => one.text === members.solver)) continue; // it is in the form, too
        const ask = { ...drawn(body), seed, num_samples: whole, ...members, on_timeout: "partial" };
        const response = await api.background(ask, signal).catch((error) => {
          if (k >= own.length || error.status !== 422) throw error; // else the form is not complete
        });
        if (!response) continue;
        const { text } = response.solver;
        if (k < own.length) this.own.push(text);
        if (this.found.some((one) => one.text === text)) continue;
        signal.throwIfAborted(); // another model was chosen meanwhile
        const error = errors(response, exact.response)?.mean ?? null;
        const { nfe, nfe_per_sample: per, latency, failed } = response;
        this.found.push({ text, nfe, mean: per.mean, seconds: latency.total_s, error, failed: failed.length });
        this.#place();
      }
      busy("");
    } catch (error) {
      busy(error.name === "AbortError" ? "cancelled" : line(error));
    }
    this.running = null;
    $("find").textContent = this.found.length ? "Try again" : TRY;
  }

  /** The ends of the slider's scale, which is logarithmic. */
  get #ends() {
    const known = this.found.filter((one) => one.error > 0);
    const values = $("budget-kind").value === "error" ? known.map((one) => one.error) : this.found.map((one) => one.nfe);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return $("budget-kind").value === "error" ? [Math.min(low, USUAL) / 1.5, Math.max(high, USUAL) * 1.5] : [low, high];
  }

  get #budget() {
    const [low, high] = this.#ends;
    return low * (high / low) ** Number($("budget").value);
  }

  /** Put the slider at the chosen budget or, until one is chosen, where most people would begin. */
  #place() {
    if (!this.found.some((one) => one.error !== null)) return;
    const [low, high] = this.#ends;
    const usual = $("budget-kind").value === "error" ? USUAL : Math.min(high, 40);
    const budget = Math.min(Math.max(this.chosen ?? usual, low), high);
    $("budget").value = high > low ? Math.log(budget / low) / Math.log(high / low) : 1;
    this.#recommend();
  }

  /** The best candidate for the budget: the cheapest that is close enough, or the closest that is cheap enough. */
  get best() {
    const known = this.found.filter((one) => one.error !== null && !one.failed);
    const byError = $("budget-kind").value === "error";
    const allowed = known.filter((one) => (byError ? one.error : one.nfe) <= this.#budget * (1 + 1e-9));
    const order = byError
      ? (p, q) => p.nfe - q.nfe || p.mean - q.mean || p.error - q.error
      : (p, q) => p.error - q.error || p.nfe - q.nfe;
    return allowed.sort(order)[0] ?? null;
  }

  #recommend() {
    const byError = $("budget-kind").value === "error";
    const { best } = this;
    const budget = byError ? `${percent(this.#budget)} of the spread` : `${Math.round(this.#budget)} evaluations`;
    $("found").hidden = false;
    $("budget-value").textContent = budget;
    $("budget").setAttribute("aria-valuetext", budget);
    const why = byError ? `the cheapest of these within ${budget}` : `the most accurate of these within ${budget}`;
    $("recommended").replaceChildren(
      ...(best
        ? [
            make("strong", {}, `${best.text}: ${best.nfe} evaluations, ${percent(best.error)} of the spread away`),
            ` from ${this.reference}; ${why}. `,
            button("Use it", () => this.load(best.text)),
          ]
        : [`None of these is within ${budget}.`]),
    );
    this.#table(best);
    this.draw();
  }

  #table(best) {
    const head = ["Solver", "NFE", "Mean NFE", "Error", "Time", "Use"].map((text) => make("th", { scope: "col" }, text));
    head[2].append(what("mean_nfe", "mean NFE"));
    const rows = this.found.map((one) => {
      const error = one.error === null ? "unknown" : percent(one.error);
      const cells = [one.nfe, one.mean.toFixed(1), one.failed ? `${error}, ${one.failed} failed` : error, one.seconds === null ? "–" : ms(one.seconds)];
      const use = button("Use", () => this.load(one.text), { "aria-label": `Use ${one.text}` });
      const yours = this.own.includes(one.text) ? [make("span", { class: "quiet" }, " yours")] : [];
      const parts = one.text.match(/[^/]+\/?/g); // a long name breaks before its grid, so that narrow screens show the button
      const name = make("th", { scope: "row" }, ...parts.flatMap((part, k) => (k ? [make("wbr"), part] : [part])), ...yours);
      const row = make("tr", {}, name, ...cells.map((cell) => make("td", {}, String(cell))), make("td", {}, use));
      if (one === best) row.setAttribute("aria-current", "true");
      return row;
    });
    $("candidates").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  }

  /** Draw the chart; it is drawn again for every candidate that arrives. */
  draw() {
    const known = this.found.filter((one) => one.error > 0);
    if (!known.length) return;
    const paint = colours();
    const { best } = this;
    const [x, y, budget] = [known.map((one) => one.nfe), known.map((one) => 100 * one.error), this.#budget];
    const byError = $("budget-kind").value === "error";
    const rule = byError ? { axis: "y", at: 100 * budget, colour: paint.b } : { axis: "x", at: budget, colour: paint.b };
    const roomy = $("frontier").clientWidth > 500; // on narrow screens the names would overlap
    const series = [{
      name: "candidates", kind: "points", x, y, colour: paint.a,
      colours: known.map((one) => (one === best ? paint.b : paint.a)), sizes: known.map((one) => (one === best ? 15 : 9)),
      texts: known.map((one) => (one === best || roomy ? one.text : "")), below: known.map((one) => one === best),
      hover: (k) => `${known[k].text}: ${x[k]} NFE, ${y[k].toPrecision(2)} % of the spread`,
      pick: (k) => this.load(known[k].text),
    }];
    const axis = (title, values) => ({ title, log: true, range: logRange(values, 2, 0.12) });
    const [xs, ys] = byError ? [x, [...y, rule.at]] : [[...x, rule.at], y];
    chart($("frontier"), { series, x: axis("NFE", xs), y: axis("error, % of the spread", ys), height: 360, rule });
  }
}
