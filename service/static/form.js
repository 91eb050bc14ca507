// The form: fields of the two settings made from what /v1/solvers says, read into a view and filled from one.
import { GRID_PARAMETERS, SETTING, second } from "./view.js";

const $ = (id) => document.getElementById(id);
const COMMON = ["model", "num_samples", "seed", "condition", "guidance"];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const option = (value, text = value) => make("option", { value }, text);

function field(side, name, text, control) {
  control.id = `${side}-${name}`;
  control.dataset.field = name;
  control.dataset.name = name;
  return make("div", { class: "field", "data-for": name }, make("label", { for: control.id }, text), control);
}

const entry = (attributes) => make("input", { inputmode: "decimal", ...attributes });

function choice(values, automatic) {
  return make("select", {}, option("", automatic), ...values.map((value) => option(value)));
}

/** Fill one <fieldset> with the controls of a setting. */
function build(side, solvers) {
  const kinds = { adaptive: "Error control or fixed steps", fixed: "Fixed steps", multistep: "Multistep" };
  const groups = Object.entries(kinds).map(([kind, title]) => {
    const those = solvers.filter((solver) => solver.kind === kind);
    return make("optgroup", { label: title }, ...those.map((s) => option(s.name, `${s.name} · order ${s.order}`)));
  });
  const radio = (value, text) => {
    const input = make("input", { type: "radio", name: `${side}-mode`, value, "data-name": "mode" });
    return make("label", {}, input, ` ${text}`);
  };
  const all = (key) => [...new Set(solvers.flatMap((solver) => solver.parameters[key] ?? []))];
  const parameters = Object.values(GRID_PARAMETERS).flatMap(Object.keys);
  $(side).replaceChildren(
    make("legend", {}, make("span", { class: "key", "aria-hidden": "true" }), side === "a" ? "Solver A" : "Solver B"),
    field(side, "solver", "Solver", make("select", {}, ...groups)),
    make("div", { class: "modes", role: "group", "aria-label": "How steps are chosen", "data-for": "mode" },
      radio("tolerance", "error control"), radio("steps", "fixed steps")),
    make("div", { class: "pair" },
      field(side, "rtol", "rtol", entry({ placeholder: "1e-5" })), field(side, "atol", "atol", entry({ placeholder: "1e-5" })),
      field(side, "steps", "Steps", entry({ inputmode: "numeric" })),
      field(side, "grid", "Grid", make("select", {}, ...all("grid").map((name) => option(name))))),
    make("div", { class: "pair" },
      ...parameters.map((name) => field(side, `grid_${name}`, name, entry({ "data-field": "grid" })))),
    make("details", { "data-for": "more" }, make("summary", {}, "More"),
      make("div", { class: "pair" },
        field(side, "controller", "Controller", choice(all("controller"), "the solver's own")),
        field(side, "error_control", "Steps are shared by", choice(all("error_control"), "nobody (sample)")),
        field(side, "start", "Start", choice(all("start"), "ramp")))),
    make("p", { class: "hint", "data-for": "cost" }),
  );
}

export class Form {
  /** @param solvers entries of /v1/solvers; @param models lines of /v1/models */
  constructor(solvers, models) {
    this.solvers = new Map(solvers.map((solver) => [solver.name, solver]));
    this.b = null;
    for (const side of ["a", "b"]) build(side, solvers);
    $("model").replaceChildren(
      ...models.map((model) => {
        const served = model.status === "served";
        return option(model.name, served ? model.name : `${model.name} (unavailable)`);
      }),
    );
  }

  /** Put a view into the fields. A model or solver that is not there stays, so that the service can say so. */
  fill(view) {
    for (const key of COMMON) this.#put($(key), view[key]);
    $("compare").checked = view.b !== null;
    this.b = view.b ?? this.b ?? second();
    this.#fillSetting("a", view.a);
    this.#fillSetting("b", this.b);
    this.arrange();
  }

  #put(control, value) {
    if (control.tagName === "SELECT" && value && ![...control.options].some((o) => o.value === value)) {
      control.append(option(value, `${value} (unknown)`));
    }
    control.value = value;
  }

  #fillSetting(side, setting) {
    for (const control of $(side).querySelectorAll("[data-name]")) {
      const name = control.dataset.name;
      if (control.type === "radio") control.checked = control.value === setting.mode;
      else if (name.startsWith("grid_")) this.#put(control, setting[name] ?? this.#gridDefault(name));
      else this.#put(control, setting[name] || (name === "grid" ? "uniform" : ""));
    }
  }

  #gridDefault(name) {
    return Object.values(GRID_PARAMETERS).find((p) => name.slice(5) in p)[name.slice(5)];
  }

  /** Read the fields into a view; `kept` gives what is not in the form. */
  read(kept) {
    const view = { ...kept };
    for (const key of COMMON) view[key] = $(key).value;
    if ($("conditional").hidden) view.condition = view.guidance = "";
    view.a = this.#setting("a");
    this.b = this.#setting("b");
    view.b = $("compare").checked ? this.b : null;
    return view;
  }

  #setting(side) {
    const setting = { ...SETTING };
    for (const control of $(side).querySelectorAll("[data-name]")) {
      const used = !control.closest("[hidden]:not(fieldset)");
      if (control.type === "radio" ? control.checked : used) setting[control.dataset.name] = control.value;
    }
    if (!this.solvers.get(setting.solver)?.parameters.rtol && this.solvers.has(setting.solver)) setting.mode = "steps";
    if (setting.grid === "uniform") setting.grid = "";
    return setting;
  }

  /** Show the fields that belong to the chosen solvers and hide the others. */
  arrange() {
    $("b").hidden = !$("compare").checked;
    for (const side of ["a", "b"]) {
      const solver = this.solvers.get($(`${side}-solver`).value);
      const takes = solver?.parameters ?? { rtol: true, start: true, controller: true };
      const tolerance = $(side).querySelector("[value=tolerance]");
      const fixed = !takes.rtol || !tolerance.checked;
      if (fixed && $(`${side}-steps`).value === "") $(`${side}-steps`).value = "20";
      const parameters = Object.keys(GRID_PARAMETERS[$(`${side}-grid`).value] ?? {});
      const shown = {
        mode: takes.rtol, rtol: !fixed, atol: !fixed, controller: !fixed, error_control: !fixed, steps: fixed,
        grid: fixed, start: Boolean(takes.start), more: !fixed || Boolean(takes.start), solver: true, cost: true,
      };
      for (const element of $(side).querySelectorAll("[data-for]")) {
        const name = element.dataset.for;
        element.hidden = name.startsWith("grid_") ? !fixed || !parameters.includes(name.slice(5)) : !shown[name];
      }
      $(side).querySelector("[data-for=cost]").textContent = solver ? `Evaluations: ${solver.cost}` : "";
    }
  }

  /** Show the condition fields if the model's card has a condition. */
  describe(about, card) {
    $("about").textContent = about;
    const takes = card?.condition ?? null;
    $("conditional").hidden = takes === null && $("condition").value === "" && $("guidance").value === "";
    const names = takes?.names ?? Array.from({ length: takes?.classes ?? 0 }, (_, k) => String(k));
    $("classes").replaceChildren(...names.map((name) => option(name)));
    const label = names.length ? `${names[0]} … ${names.at(-1)}` : "";
    const expected = takes?.kind === "vector" ? `[${takes.width} numbers]` : label;
    $("condition").placeholder = takes?.null ? `${expected}, or none` : expected;
    $("guidance").closest(".field").hidden = takes?.null === false && $("guidance").value === "";
  }

  /** Mark the fields a problem names; `errors` is the service's list of {field, message}. */
  mark(errors = [], side = null) {
    for (const control of document.querySelectorAll("#form [aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
    for (const { field: name } of errors) {
      const root = name.split(".")[0];
      for (const control of document.querySelectorAll(`#common [data-field="${CSS.escape(root)}"], #${side ?? "a"} [data-field="${CSS.escape(root)}"]`)) {
        control.setAttribute("aria-invalid", "true");
        control.setAttribute("aria-describedby", "problem");
      }
    }
  }
}
