// The view: what the page shows, as one plain object and as the part of its address after #.
import { GRIDS, format, number as shortest, parse } from "./solver_text.js";

/**
 * A solver's settings as in its fields: texts, "" where a field is empty. `mode` is "steps" or "tolerance"; a
 * parameter of a grid is called `grid_` and its name, and `grid_times` are explicit times.
 * @typedef {Record<string, string>} Setting
 */
export const SETTING = {
  solver: "", mode: "", steps: "", rtol: "", atol: "", grid: "", start: "", controller: "", error_control: "",
  first_step: "", max_step: "", max_nfe: "", budget_max_error: "", budget_max_nfe: "", budget_max_ms: "",
};
/** The value of the field "solver" if a budget is given instead. */
export const BUDGET = "budget";
const LIMITS = { max_error: "error", max_nfe: "NFE", max_ms: "ms" };
/** Grids, their parameters, and the initial values of these in the form. */
export const GRID_PARAMETERS = {
  shift: { value: "3" },
  power: { exponent: "2" },
  sway: { coefficient: "-1" },
  logit_normal: { mean: "0", std: "1" },
  karras: { rho: "7", sigma_min: "0.002", sigma_max: "80" },
  times: { times: "0, 0.5, 1" },
};
const COMMON = ["model", "num_samples", "seed", "condition", "guidance"];
/** Texts by name: `c.text=[1, 2]` in an address is a condition, `s.T=80` the size of a free axis. */
const GROUPS = { c: "conditions", s: "shape" };
/** What is shown besides the samples, and the values that an address may give it; others are ignored. */
const FLAGS = {
  layout: /^(side|over)$/, colour: /^(nfe|error)$/, velocity: /^1$/, density: /^1$/, sample: /^\d{1,9}$/, timeout: /^[1-9]\d{0,2}$/,
};
const SETTINGS = new Set([...Object.keys(SETTING), ...Object.values(GRID_PARAMETERS).flatMap(Object.keys).map((name) => `grid_${name}`)]);
const SOLVER = "dopri5"; // if an address names none

export const first = () => ({
  model: "", num_samples: "", seed: "0", condition: "", guidance: "",
  conditions: {}, shape: {}, layout: "side", colour: "", velocity: "", density: "", sample: "", timeout: "",
  a: { ...SETTING, solver: SOLVER, mode: "tolerance", rtol: "1e-3", atol: "1e-3" },
  b: null,
});

/** The initial second setting: cheap next to the first. */
export const second = () => ({ ...SETTING, solver: "euler", mode: "steps", steps: "10" });

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
  if ([...parts.keys()].some((key) => key.startsWith("a.") && SETTINGS.has(key.slice(2)))) view.a = { ...SETTING, solver: SOLVER };
  for (const [key, value] of parts) {
    const [side, name] = [key.slice(0, 1), key.slice(2)];
    if (key === "a" || key === "b") view[key] = settingOf(value.replace(/ (?=[a-z])/gi, "+")); // a plain + arrives as a space
    else if (/^[ab]\./.test(key) && SETTINGS.has(name)) (view[side] ??= { ...SETTING, solver: SOLVER })[name] = value;
    else if (GROUPS[side] && /^.\.[A-Za-z]\w{0,63}$/.test(key)) view[GROUPS[side]][name] = value;
    else if (COMMON.includes(key) || (Object.hasOwn(FLAGS, key) && FLAGS[key].test(value))) view[key] = value;
  }
  for (const side of [view.a, view.b]) if (side) side.mode = side.steps || side.grid === "times" ? "steps" : "tolerance";
  return view;
}

/** Return the setting of a solver's text; a text that cannot be parsed becomes an unknown solver. */
export function settingOf(text) {
  let fields;
  try {
    fields = parse(text);
  } catch {
    fields = { solver: text };
  }
  const { grid, ...rest } = fields;
  const setting = { ...SETTING, ...Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, shortest(value)])) };
  if (Array.isArray(grid)) Object.assign(setting, { grid: "times", grid_times: grid.map(shortest).join(", "), steps: "" });
  else if (typeof grid === "string") setting.grid = grid === "uniform" ? "" : grid;
  else if (grid) setting.grid = grid.name;
  for (const [name, usual] of Object.entries({ ...GRIDS[setting.grid], ...grid })) {
    if (setting.grid !== "times" && name !== "name") setting[`grid_${name}`] = shortest(grid[name] ?? usual);
  }
  setting.mode = setting.steps || setting.grid === "times" ? "steps" : "tolerance";
  return setting;
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
  const found = Object.entries(texts).filter(([, text]) => text.trim() !== "").map(([name, text]) => [name, read(text)]);
  return found.length ? Object.fromEntries(found) : undefined;
}

/** The limits of a budget that are filled in. */
function budget(setting) {
  const given = Object.keys(LIMITS).map((name) => [name, number(setting[`budget_${name}`])]);
  return Object.fromEntries(given.filter(([, value]) => value !== undefined));
}

/** The members of a request that say how to solve; undefined where a field is empty. */
export function solving(setting) {
  if (setting.solver === BUDGET) return { budget: budget(setting) };
  const fixed = setting.mode === "steps";
  const explicit = fixed && setting.grid === "times";
  const adaptive = fixed ? () => undefined : (value) => value;
  return {
    solver: setting.solver,
    steps: fixed && !explicit ? number(setting.steps) : undefined,
    rtol: adaptive(number(setting.rtol)),
    atol: adaptive(number(setting.atol)),
    grid: fixed ? grid(setting) : undefined,
    start: setting.start || undefined,
    controller: adaptive(setting.controller || undefined),
    error_control: adaptive(setting.error_control || undefined),
    first_step: adaptive(number(setting.first_step)),
    max_step: adaptive(number(setting.max_step)),
    max_nfe: number(setting.max_nfe),
  };
}

function grid(setting) {
  const name = setting.grid;
  if (name === "" || name === "uniform") return undefined;
  if (name === "times") return (setting.grid_times ?? "").split(",").map((part) => number(part) ?? "");
  const parameters = Object.keys(GRID_PARAMETERS[name] ?? {});
  return Object.fromEntries([["name", name], ...parameters.map((key) => [key, number(setting[`grid_${key}`])])]);
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
    ...solving(setting),
  };
}

/** The text of a setting: `rk4-20`, `ab3-12/shift(3)`, `dopri5@1e-3`. Two settings that differ never read alike. */
export function label(setting) {
  if (setting.solver === BUDGET) {
    const limits = Object.entries(budget(setting)).map(([name, value]) => `${LIMITS[name]} ≤ ${value}`);
    return `budget: ${limits.join(", ") || "?"}`;
  }
  const fields = solving(setting);
  if (setting.mode === "steps") fields.steps ??= Array.isArray(fields.grid) ? fields.grid.length - 1 : "?";
  return format(fields);
}

/** A seed below 2³¹, short enough to be read in its field; longer ones can be typed. */
export function newSeed() {
  return String(crypto.getRandomValues(new Uint32Array(1))[0] >>> 1);
}
