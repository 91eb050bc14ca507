// Explanations: a "?" beside each term shows one sentence about it; and the cost of a solver in words.
import { $, make } from "./dom.js";
import { catalogue } from "./view.js";

const TERMS = {
  model: "A trained network v(x, t) that gives the velocity of a point x at time t.",
  num_samples: "The number of samples; each is computed independently, so a larger number never changes the others.",
  seed: "Fixes the noise that the samples start from: the same seed gives the same samples, here and in any program.",
  condition: "What a conditional model should draw, such as a class by name or number.",
  conditions: "An input of the network besides the state and the time: one value for all samples, or a list with one for each.",
  shape: "The size of the samples along this axis, which the model leaves open.",
  guidance: "How strongly to follow the condition: 1 is the model as trained, and values other than 0 and 1 double the network's work.",
  solver: "The method that follows the velocity from t = 0 to t = 1; a higher order takes fewer but costlier steps.",
  mode: "With error control, the solver chooses its step sizes to meet the tolerance; fixed steps are set in advance.",
  tolerance: "The error that each step may have, relative to the state and absolutely: 1e-5, or two values as 1e-5/1e-6.",
  grid_times: "All times from 0 to 1, separated by commas.",
  budget_max_error: "The service takes the cheapest measured solver with which 95 % of samples end within this: 0.01 is 1 % of the spread.",
  budget_max_nfe: "The service takes only solvers with fixed steps and at most this many network evaluations per sample.",
  budget_max_ms: "The service takes only solvers that draw all the samples within this many milliseconds at its current pace.",
  nfe: "Number of function evaluations: network calls, one after another, of the slowest sample.",
  mean_nfe: "NFE averaged over the samples: under error control each sample takes its own number of evaluations.",
  colour: "Points show which solver drew them, how many evaluations each took, or how far each is from the reference.",
  latency: "Time in the service: waiting, the network, the rest of the solver, and encoding the response.",
  error: "The endpoint error that 95 % of these samples end within: the distance from the exact end of a sample's own path, as a percentage of the spread.",
  promised: "The upper end of the interval of p95: with 99 % confidence, 95 % of all samples end within it. Solvers are ranked by it.",
  spread: "How far the exact ends are from their mean (root mean square), in the model's own coordinates: the unit of errors here.",
  real: "Green points are data that training did not see, of all classes and conditions, stored with the model.",
  velocity: "Arrows show where the model moves a point at the time on the slider, and how fast.",
  density: "The stronger the colour behind the points, the more likely samples are there at the time on the slider (log scale).",
  h: "The solver moves from t to t + h in one step; steps are short where the velocity changes quickly.",
  rejected: "Attempts that error control discarded because their error was too large; they cost evaluations, too.",
  log_prob: "The logarithm of the model's density at the sample, computed exactly along its path.",
  finder: "The service measures solvers on the same samples, so that you can see which is cheapest for the accuracy you need.",
  budget: "What a sample may cost, or how large its error may be; the best solver within it is recommended.",
};

let opener = null;

/** A "?" that explains a term. */
export function what(term, name) {
  return make("button", { type: "button", class: "what", "aria-label": `What is ${name}?`, "data-what": term });
}

/** Put a "?" beside every label that has a term, and show its explanation when it is pressed. */
export function listen() {
  for (const label of document.querySelectorAll("[data-term]")) explain(label);
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-what]");
    if (button) show(button);
  });
  addEventListener("scroll", () => $("term").hidePopover(), { passive: true, capture: true });
}

export function explain(label) {
  if (label.nextElementSibling?.classList.contains("what")) return;
  label.after(what(label.dataset.term, label.textContent.trim()));
}

/** The sentence about a term; of fields of a request and parameters of grids, the service's. */
export function explanation(term) {
  if (TERMS[term]) return TERMS[term];
  const parameters = Object.values(catalogue.grids).flatMap((grid) => Object.entries(grid.parameters));
  const { about } = catalogue.settings[term] ?? catalogue.fields[term] ?? Object.fromEntries(parameters)[term.replace("grid_", "")] ?? {};
  return about && `${about[0].toUpperCase()}${about.slice(1)}.`;
}

function show(button) {
  const box = $("term");
  const again = opener === button && box.matches(":popover-open");
  box.hidePopover();
  opener = button;
  if (again) return;
  box.textContent = explanation(button.dataset.what);
  box.showPopover();
  const place = button.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - box.offsetWidth - 12);
  const below = place.bottom + box.offsetHeight + 12 < innerHeight;
  box.style.left = `${Math.max(12, left)}px`;
  box.style.top = `${below ? place.bottom + 6 : place.top - box.offsetHeight - 6}px`;
}

/**
 * What a solver costs, in words.
 * @param solver an entry of /v1/solvers, with `cost` as a formula in N steps or A attempts
 * @param setting see view.js
 */
export function cost({ cost: formula, kind }, setting) {
  if (setting.mode !== "steps") {
    const attempt = /\+ (\d+) A/.exec(formula)?.[1];
    return attempt ? `About ${attempt} evaluations for each attempt.` : `Evaluations: ${formula}`;
  }
  const fixed = kind === "adaptive" ? formula.replace(/.*fixed: /, "") : formula;
  const calls = Number(/(\d+) N/.exec(fixed)?.[1] ?? 1);
  const extra = kind === "multistep" && setting.start === "rk" ? Number(/N \+ (\d+)/.exec(fixed)?.[1] ?? 0) : 0;
  const steps = setting.grid === "times" ? (setting.grid_times ?? "").split(",").length - 1 : Number(setting.steps);
  const all = Number.isInteger(steps) && steps > 0 ? `: ${calls * steps + extra} in all` : "";
  const start = extra ? `, plus ${extra} at the start` : "";
  return `${calls} evaluation${calls === 1 ? "" : "s"} for each step${start}${all}.`;
}
