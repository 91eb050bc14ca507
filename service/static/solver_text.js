// Solvers as text, such as `rk4-20`, `ab3-12/shift(3)` or `dopri5@1e-5/1e-6+batch`: parser and formatter.
//
//     fixed:     NAME-STEPS[/GRID][+OPTION...]
//     adaptive:  NAME[@RTOL[/ATOL]][+OPTION...]
//
// The service, the SDK and the command line read and write the same text; one table of examples tests all of them.

/** Parameters of each grid in the order in which text has them, with their defaults (null: none). */
export const GRIDS = {
  uniform: {},
  shift: { value: null },
  sway: { coefficient: -1 },
  power: { exponent: null },
  logit_normal: { mean: 0, std: 1 },
  karras: { rho: 7, sigma_min: 0.002, sigma_max: 80 },
};
/** Solvers and grids that were tuned for one model. */
export const TUNED = "tuned";
const WORDS = {
  ramp: "start", rk: "start", paper: "controller", i: "controller", pi: "controller",
  sample: "error_control", batch: "error_control",
};
const OPTIONS = ["start", "controller", "error_control", "first_step", "max_step", "max_nfe"]; // in the order of printing

const NUMBER = "[+-]?(?:\\d+\\.?\\d*|\\.\\d+)(?:e[+-]?\\d+)?";
const TEXT = new RegExp(
  "^([a-z_][a-z0-9_]*)" +
    `(?:[-:](\\d+)(?:/(?:([a-z_][a-z0-9_]*)(?:\\(([^()]*)\\))?|\\(([^()]*)\\)))?|@(${NUMBER})(?:/(${NUMBER}))?)?` +
    `((?:\\+[a-z_]+(?:=${NUMBER})?)*)$`,
);
const OPTION = new RegExp(`\\+([a-z_]+)(?:=(${NUMBER}))?`, "g");

/**
 * Read the text of a solver into members of `POST /v1/sample`: exactly what the text says.
 * @param {string} text
 * @returns {Record<string, any>}
 * @throws {Error} if it is not understood
 */
export function parse(text) {
  const match = TEXT.exec(text.trim().toLowerCase());
  if (!match) throw new Error(`solver "${text}" is not understood; write rk4-20, ab3-12/shift(3) or dopri5@1e-5`);
  const [, solver, steps, name, inside, times, rtol, atol, options] = match;
  const fields = { solver };
  if (steps) fields.steps = Number(steps);
  if (times !== undefined) fields.grid = numbers(text, times);
  else if (name) fields.grid = inside === undefined ? name : grid(text, name, numbers(text, inside));
  if (rtol) Object.assign(fields, { rtol: Number(rtol), atol: Number(atol ?? rtol) });
  for (const [, word, value] of options.matchAll(OPTION)) {
    const [field, setting] = option(text, word, value);
    if (field in fields) throw new Error(`solver "${text}" says ${field} twice; leave one of them out`);
    fields[field] = setting;
  }
  return fields;
}

function numbers(text, inside) {
  return inside.split(",").map((part) => {
    if (!new RegExp(`^\\s*${NUMBER}\\s*$`).test(part)) throw new Error(`solver "${text}": (${inside}) is not a list of numbers`);
    return Number(part);
  });
}

function grid(text, name, values) {
  const parameters = Object.keys(GRIDS[name] ?? {});
  if (values.length > parameters.length) throw new Error(`solver "${text}": ${name} does not take ${values.length} numbers`);
  return { name, ...Object.fromEntries(values.map((value, k) => [parameters[k], value])) };
}

function option(text, word, value) {
  if (word === "max_nfe" && /^\d+$/.test(value ?? "")) return [word, Number(value)];
  if ((word === "first_step" || word === "max_step") && value !== undefined) return [word, Number(value)];
  if (Object.hasOwn(WORDS, word) && value === undefined) return [WORDS[word], word];
  throw new Error(`solver "${text}": +${word} is not an option; use ${Object.keys(WORDS).join(", ")} or max_step=0.05`);
}

/**
 * Write the text of a solver from members of `POST /v1/sample`; without `steps`, it is under error control.
 * Values that are not numbers are written as they are, so that what a person typed can be shown.
 */
export function format(fields) {
  const { solver } = fields;
  let text = solver;
  if (fields.steps !== undefined) {
    const shown = gridText(fields.grid ?? "uniform");
    text += `-${fields.steps}${shown === "uniform" ? "" : `/${shown}`}`;
  } else {
    const [rtol, atol] = [number(fields.rtol ?? 1e-5), number(fields.atol ?? 1e-5)];
    text += rtol === atol ? `@${rtol}` : `@${rtol}/${atol}`;
  }
  const usual = { start: "ramp", controller: solver === "dopri5" ? "paper" : "i", error_control: "sample", max_nfe: 10000 };
  for (const key of OPTIONS) {
    const value = fields[key];
    if (value === undefined || value === usual[key]) continue;
    text += `+${key in usual && key !== "max_nfe" ? value : `${key}=${number(value)}`}`;
  }
  return text;
}

function gridText(spec) {
  if (typeof spec === "string") return spec;
  if (Array.isArray(spec)) return `(${spec.map(number).join(",")})`;
  const defaults = Object.entries(GRIDS[spec.name] ?? {});
  const values = defaults.map(([key, value]) => spec[key] ?? value);
  while (values.length && values.at(-1) === defaults[values.length - 1][1]) values.pop();
  return values.length ? `${spec.name}(${values.map(number).join(",")})` : spec.name;
}

/** The shortest text of a number that reads back equal: decimal where an exponent saves nothing. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  const short = value.toExponential().replace("e+", "e");
  const plain = plainly(short);
  return plain.length <= short.length ? plain : short;
}

/** 1.5e-7 without its exponent. */
function plainly(exponential) {
  const [, sign, first, rest, power] = /^(-?)(\d)(?:\.(\d+))?e(-?\d+)$/.exec(exponential);
  const digits = first + (rest ?? "");
  const point = 1 + Number(power);
  if (point <= 0) return digits === "0" ? "0" : `${sign}0.${"0".repeat(-point)}${digits}`;
  if (point >= digits.length) return sign + digits.padEnd(point, "0");
  return `${sign}${digits.slice(0, point)}.${digits.slice(point)}`;
}
