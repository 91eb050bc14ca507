// What the page shows, as one plain object, and as the part of its address after #.

export const SETTING = {
  solver: "", mode: "", steps: "", rtol: "", atol: "", grid: "", start: "", controller: "", error_control: "",
};
// Pairs (a grid, its parameter) that the service cannot do without, and where they begin here.
export const GRID_PARAMETERS = {
  shift: { value: "3" },
  power: { exponent: "2" },
  sway: { coefficient: "-1" },
  logit_normal: { mean: "0", std: "1" },
};
const COMMON = ["model", "num_samples", "seed", "condition", "guidance"];
const FLAGS = ["layout", "animate"];

export const first = () => ({
  model: "", num_samples: "", seed: "0", condition: "", guidance: "", layout: "side", animate: "",
  a: { ...SETTING, solver: "dopri5", mode: "tolerance", rtol: "1e-3", atol: "1e-3" },
  b: null,
});

/** The second setting when it is first asked for: cheap next to the first. */
export const second = () => ({ ...SETTING, solver: "euler", mode: "steps", steps: "10" });

export function toHash(view) {
  const parts = new URLSearchParams();
  for (const key of [...COMMON, ...FLAGS]) if (view[key] !== "" && view[key] !== "side") parts.set(key, view[key]);
  for (const side of ["a", "b"]) {
    for (const [key, value] of Object.entries(view[side] ?? {})) {
      if (value !== "" && key !== "mode") parts.set(`${side}.${key}`, value);
    }
  }
  return parts.toString();
}

export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const view = first();
  if ([...parts.keys()].some((key) => key.startsWith("a."))) view.a = { ...SETTING };
  for (const [key, value] of parts) {
    const [side, name] = key.split(".");
    if (name === undefined) {
      if ([...COMMON, ...FLAGS].includes(key)) view[key] = value;
    } else if (side === "a" || side === "b") {
      view[side] ??= { ...SETTING };
      view[side][name] = value;
    }
  }
  for (const side of [view.a, view.b]) if (side) side.mode = side.steps === "" ? "tolerance" : "steps";
  return view;
}

/** A number where the text is one, else the text as it is: the service says what is wrong with it. */
export function number(text) {
  const plain = String(text).trim();
  if (plain === "") return undefined;
  if (/^[+-]?\d+$/.test(plain) && plain.length > 15) return BigInt(plain);
  return Number.isFinite(Number(plain)) ? Number(plain) : plain;
}

function condition(text) {
  const plain = text.trim();
  if (!plain.startsWith("[")) return number(plain);
  try {
    return JSON.parse(plain);
  } catch {
    return plain;
  }
}

/** The body of `POST /v1/sample` for one setting of a view. Members that are undefined are left out. */
export function request(view, setting, extra = {}) {
  const fixed = setting.mode === "steps";
  return {
    model: view.model,
    num_samples: number(view.num_samples),
    seed: number(view.seed),
    condition: condition(view.condition),
    guidance: number(view.guidance),
    solver: setting.solver,
    steps: fixed ? number(setting.steps) : undefined,
    rtol: fixed ? undefined : number(setting.rtol),
    atol: fixed ? undefined : number(setting.atol),
    grid: fixed ? grid(setting) : undefined,
    start: setting.start || undefined,
    controller: fixed ? undefined : setting.controller || undefined,
    error_control: fixed ? undefined : setting.error_control || undefined,
    ...extra,
  };
}

function grid(setting) {
  const name = setting.grid;
  if (name === "" || name === "uniform") return undefined;
  const parameters = Object.keys(GRID_PARAMETERS[name] ?? {});
  return Object.fromEntries([["name", name], ...parameters.map((key) => [key, number(setting[`grid_${key}`] ?? "")])]);
}

/** A short name of a setting: `rk4-20`, `dopri5@1e-3`, as `pathline compare` writes it. */
export function label(setting) {
  if (setting.mode === "steps") return `${setting.solver}-${setting.steps}`;
  const { rtol, atol } = setting;
  return `${setting.solver}@${rtol === atol || !atol ? rtol || "1e-5" : `${rtol}/${atol}`}`;
}

export function newSeed() {
  return String(crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n);
}
