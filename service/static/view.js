// The view: what the page shows, as one plain object and as the part of its address after #.
/** What GET /v1/solvers says: the solvers by name, the settings that they can be given, other fields, and the grids. */
export const catalogue = { solvers: new Map(), settings: {}, fields: {}, grids: {} };
/** Solvers and grids that were tuned for one model. */
export const TUNED = "tuned";

/** Whether the paths of a run have noise of their own. */
export const stochastic = (run) => catalogue.solvers.get((run.solver ?? run.response.solver).name)?.kind === "stochastic";

export function learn({ solvers, ...others }) {
  const tuned = { name: TUNED, order: null, stages: 1, kind: "fixed", cost: "N", parameters: { steps: "integer" } };
  catalogue.solvers = new Map([...solvers, tuned].map((solver) => [solver.name, solver])); // `tuned` belongs to one model
  Object.assign(catalogue, others);
}

/**
 * A solver's settings as in its fields: texts, and no member where a field is empty. `mode` is "steps" or "tolerance";
 * a parameter of a grid is called `grid_` and its name, `grid_times` are explicit times, and `budget_` precedes a
 * limit. If `solver` is not a name but a text with settings, there are no others, until the service has resolved it.
 * @typedef {Record<string, string>} Setting
 */
/** The value of the field "solver" if a budget is given instead. */
export const BUDGET = "budget";
const LIMITS = { max_error: "error", max_nfe: "NFE", max_ms: "ms" };
/** The parameters of a grid, and their initial values in the form. */
export function gridParameters(name) {
  if (name === "times") return { times: "0, 0.5, 1" };
  const { parameters = {} } = catalogue.grids[name] ?? {};
  return Object.fromEntries(Object.entries(parameters).map(([key, { default: usual, example }]) => [key, String(usual ?? example)]));
}

/** Fields of the form that both settings share. */
export const COMMON = ["model", "num_samples", "seed", "condition", "guidance"];
/** Texts by name: `c.text=[1, 2]` in an address is a condition, `s.T=80` the size of a free axis, `f.noise_scale=0.8` a field. */
const GROUPS = { c: "conditions", s: "shape", f: "fields" };
/** What is shown besides the samples, and the values that an address may give it; others are ignored. */
const FLAGS = {
  layout: /^(side|over)$/, colour: /^(nfe|error)$/, velocity: /^1$/, density: /^1$/, sample: /^\d{1,9}$/, timeout: /^[1-9]\d{0,2}$/,
  real: /^no$/, x: /^\d{1,4}$/, y: /^\d{1,4}$/,
};
const SOLVER = "dopri5"; // if an address names none

export const first = () => ({
  model: "", num_samples: "", seed: "0", condition: "", guidance: "",
  conditions: {}, shape: {}, fields: {}, layout: "side", colour: "", velocity: "", density: "", sample: "", timeout: "",
  real: "", x: "", y: "", a: null, b: null,
});

/** The initial second setting: cheap next to the first. */
export const second = () => ({ solver: "euler", mode: "steps", steps: "10" });

export function toHash(view) {
  const parts = new URLSearchParams();
  for (const key of [...COMMON, ...Object.keys(FLAGS)]) if (view[key] !== "" && view[key] !== "side") parts.set(key, view[key]);
  for (const [letter, group] of Object.entries(GROUPS)) {
    for (const [name, text] of Object.entries(view[group])) if (text.trim() !== "") parts.set(`${letter}.${name}`, text);
  }
  for (const side of ["a", "b"]) {
    for (const [key, value] of Object.entries(view[side] ?? {})) {
      if (value !== "" && key !== "mode") parts.set(`${side}.${key}`, value);
    }
  }
  return parts.toString();
}

/** Read an address. A solver may be spelled by its fields (`a.solver=rk4&a.steps=20`) or as text (`a=rk4-20`). */
export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const view = first();
  if ([...parts.keys()].some((key) => key.startsWith("a.") && isSetting(key.slice(2)))) view.a = { solver: SOLVER };
  for (const [key, value] of parts) {
    const [side, name] = [key.slice(0, 1), key.slice(2)];
    if (key === "a" || key === "b") view[key] = { solver: value.replace(/ (?=[a-z])/gi, "+") }; // a plain + arrives as a space
    else if (/^[ab]\./.test(key) && isSetting(name)) (view[side] ??= { solver: SOLVER })[name] = value;
    else if (GROUPS[side] && /^.\.[A-Za-z]\w{0,63}$/.test(key)) view[GROUPS[side]][name] = value;
    else if (COMMON.includes(key) || (Object.hasOwn(FLAGS, key) && FLAGS[key].test(value))) view[key] = value;
  }
  for (const side of [view.a, view.b]) if (side) side.mode = modeOf(side);
  return view;
}

const isSetting = (name) => name === "solver" || Object.hasOwn(catalogue.settings, name) || /^(grid_\w{1,64}|budget_max_(error|nfe|ms))$/.test(name);

const modeOf = ({ steps, grid }) => (steps || grid === "times" ? "steps" : "tolerance");

/** Whether a setting names its solver and has the rest in fields; otherwise it is a text that only the service reads. */
export const spelled = ({ solver }) => solver === BUDGET || catalogue.solvers.has(solver);

/** The setting of a solver as a response resolves it; values that are usual for the solver are left out. */
export function settingOf({ name, grid = "uniform", text: _, plan: __, ...others }) {
  const setting = { solver: name };
  for (const [key, value] of Object.entries(others)) if (value !== null && value !== usual(name, key)) setting[key] = String(value);
  if (Array.isArray(grid)) Object.assign(setting, { grid: "times", grid_times: grid.join(", ") });
  else if (grid.name) {
    const { name: family, ...parameters } = grid;
    setting.grid = family;
    for (const [key, value] of Object.entries(parameters)) setting[`grid_${key}`] = String(value);
  } else if (grid !== "uniform") setting.grid = grid;
  if (setting.grid === "times") delete setting.steps;
  return { ...setting, mode: modeOf(setting) };
}

/** "max_step" as "Max step". */
export const titled = (name) => name.replace("nfe", "NFE").replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());

/** The value that a setting has if its field is empty. */
export function usual(solver, key) {
  const values = catalogue.solvers.get(solver)?.parameters[key];
  return Array.isArray(values) ? values[0] : catalogue.settings[key]?.default;
}

/** A number if the text is one, else the text as it is: the service will report the fault. */
export function number(text) {
  const trimmed = String(text ?? "").trim();
  if (trimmed === "") return undefined;
  if (/^[+-]?\d+$/.test(trimmed) && trimmed.length > 15) return BigInt(trimmed);
  return Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

/** A condition as people write it: a number, a word, true or false, or a list as JSON. 007 is a word. */
function condition(text) {
  const trimmed = text.trim();
  if (/^[+-]?0\d/.test(trimmed)) return trimmed;
  if (!/^(\[|true$|false$)/.test(trimmed)) return number(trimmed);
  try {
    return JSON.parse(trimmed);
  } catch {
    return trimmed;
  }
}

/** The texts of a group that are filled in, read; undefined if there are none. */
function filled(texts, read) {
  const values = Object.entries(texts).filter(([, text]) => text.trim() !== "").map(([name, text]) => [name, read(text)]);
  return values.length ? Object.fromEntries(values) : undefined;
}

/** The limits of a budget that are filled in. */
function budget(setting) {
  const limits = Object.keys(LIMITS).map((name) => [name, number(setting[`budget_${name}`])]);
  return Object.fromEntries(limits.filter(([, value]) => value !== undefined));
}

/** The members of a request that say how to solve; none where a field is empty. */
export function solving(setting) {
  if (setting.solver === BUDGET) return { budget: budget(setting) };
  const members = { solver: setting.solver };
  for (const key of Object.keys(catalogue.settings)) if (setting[key] && key !== "grid") members[key] = number(setting[key]);
  const name = setting.grid ?? "";
  if (name === "times") members.grid = (setting.grid_times ?? "").split(",").map((part) => number(part) ?? "");
  else if (name !== "" && name !== "uniform") {
    const parameters = Object.keys(gridParameters(name)).map((key) => [key, number(setting[`grid_${key}`])]);
    members.grid = parameters.length ? Object.fromEntries([["name", name], ...parameters]) : name;
  }
  return members;
}

/** The body of `POST /v1/sample` for one setting of a view. Members that are undefined are left out. */
export function request(view, setting) {
  return {
    model: view.model,
    num_samples: number(view.num_samples),
    seed: number(view.seed),
    condition: condition(view.condition),
    conditions: filled(view.conditions, condition),
    shape: filled(view.shape, number),
    guidance: number(view.guidance),
    ...filled(view.fields, number),
    ...solving(setting),
  };
}

/** A setting in words, until the service has said its text. */
export function label(setting) {
  if (setting.solver === BUDGET) {
    const limits = Object.entries(budget(setting)).map(([name, value]) => `${LIMITS[name]} ≤ ${value}`);
    return `budget: ${limits.join(", ") || "?"}`;
  }
  const { solver, mode: _, ...others } = setting;
  return [solver, ...Object.entries(others).filter(([, text]) => text).map(([key, text]) => `${key} ${text}`)].join(", ");
}

/** A seed below 2³¹, short enough to be read in its field; longer ones can be typed. */
export function newSeed() {
  return String(crypto.getRandomValues(new Uint32Array(1))[0] >>> 1);
}
