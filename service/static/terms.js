// The words of the page explained: a "?" beside each term shows one sentence; and what a solver costs, in words.
import { $, make } from "./dom.js";

export const TERMS = {
  model: "A trained network v(x, t): the velocity at which a point x moves at time t.",
  num_samples: "How many points are carried from noise to data. Each is computed by itself, whatever the number.",
  seed: "Names the noise that the samples begin with: the same seed gives the same samples, here and in any program.",
  condition: "What a conditional model should draw, such as a class by name or number.",
  guidance: "How strongly the condition is followed: 1 is the model itself, more is stronger; it doubles the work of the network.",
  solver: "The method that follows the velocity from t = 0 to t = 1. A higher order needs fewer, more expensive steps.",
  mode: "With error control the solver chooses its steps so that each meets the tolerance; fixed steps are given in advance.",
  rtol: "Relative tolerance: the error that a step may make, as a share of the state's size.",
  atol: "Absolute tolerance: the error that a step may make where the state is near 0.",
  steps: "Into how many steps the way from t = 0 to t = 1 is cut.",
  grid: "Where the steps lie: evenly, or closer together near the noise or the data.",
  grid_value: "Above 1, more steps lie near the noise.",
  grid_exponent: "Times are u to this power, u being even: above 1, more steps lie near the noise.",
  grid_coefficient: "Below 0, more steps lie near the noise.",
  grid_mean: "Below 0, more steps lie near the noise.",
  grid_std: "The smaller it is, the more steps lie in one place.",
  grid_times: "All times, from 0 to 1, with commas between them.",
  controller: "The rule that turns a step's error into the size of the next step.",
  error_control: "Whether each sample has steps of its own, or all samples share them.",
  start: "How a multistep method takes its first steps, before it has velocities to reuse.",
  first_step: "Size of the first step; chosen by the solver where left out.",
  max_step: "The longest step under error control, in units of t: a bound for fields with short features.",
  max_nfe: "A sample that would need more network evaluations than this is given up.",
  nfe: "Number of function evaluations: how often the slowest sample asks the network, one call after another.",
  latency: "Time in the service: waiting, network, the rest of the solver, and writing the answer.",
  error: "Mean distance to the reference solution from the same noise, as a share of the samples' spread.",
};

let opener = null;

/** A "?" that explains a term. */
export function what(term, name) {
  const element = make("button", { type: "button", class: "what", "aria-label": `What is ${name}?`, "data-what": term });
  return element;
}

/** Put a "?" beside every label that has a term, and show explanations when they are asked for. */
export function listen() {
  for (const label of document.querySelectorAll("[data-term]")) explain(label);
  document.addEventListener("click", (event) => {
    const asked = event.target.closest?.("[data-what]");
    if (asked) show(asked);
  });
  addEventListener("scroll", () => $("term").hidePopover(), { passive: true, capture: true });
}

export function explain(label) {
  if (label.nextElementSibling?.classList.contains("what")) return;
  label.after(what(label.dataset.term, label.textContent.trim()));
}

function show(asked) {
  const box = $("term");
  const again = opener === asked && box.matches(":popover-open");
  box.hidePopover();
  opener = asked;
  if (again) return;
  box.textContent = TERMS[asked.dataset.what];
  box.showPopover();
  const place = asked.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - box.offsetWidth - 12);
  const below = place.bottom + box.offsetHeight + 12 < innerHeight;
  box.style.left = `${Math.max(12, left)}px`;
  box.style.top = `${below ? place.bottom + 6 : place.top - box.offsetHeight - 6}px`;
}

/**
 * What a solver costs, in words.
 * @param solver an entry of /v1/solvers, whose `cost` is a formula in N steps or A attempts
 * @param setting see view.js
 */
export function cost({ cost: formula, kind }, setting) {
  if (setting.mode !== "steps") {
    const attempt = /\+ (\d+) A/.exec(formula)?.[1];
    return attempt ? `About ${attempt} evaluations for each attempted step, and 2 to begin.` : `Evaluations: ${formula}`;
  }
  const fixed = kind === "adaptive" ? formula.replace(/.*fixed: /, "") : formula;
  const each = Number(/(\d+) N/.exec(fixed)?.[1] ?? 1);
  const extra = kind === "multistep" && setting.start === "rk" ? Number(/N \+ (\d+)/.exec(fixed)?.[1] ?? 0) : 0;
  const steps = setting.grid === "times" ? (setting.grid_times ?? "").split(",").length - 1 : Number(setting.steps);
  const all = Number.isInteger(steps) && steps > 0 ? `: ${each * steps + extra} in all` : "";
  const start = extra ? `, and ${extra} more for the start` : "";
  return `${each} evaluation${each === 1 ? "" : "s"} for each step${start}${all}.`;
}
