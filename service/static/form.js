// The form: fields of the two settings, made from /v1/solvers, read into a view and filled from one.
import { $, make } from "./dom.js";
import { cost, explain } from "./terms.js";
import { BUDGET, COMMON, TUNED, catalogue, gridParameters, second, spelled, titled, usual } from "./view.js";

/** Settings with a place of their own; the others are under "More". */
const OWN = ["steps", "rtol", "atol", "grid"];

const TOLERANCE = "1e-5"; // the service's, relative and absolute

/** The settings that a field stands for: one tolerance is both, and 1e-5/1e-6 are two. */
const FIELDS = { tolerance: "rtol atol", budget: "budget", grid: "grid" };

const option = (value, text = value) => make("option", { value }, text);

function field(side, name, text, control) {
  control.id = `${side}-${name}`;
  const group = name.replace(/^(grid|budget)_.*/, "$1");
  control.dataset.field = FIELDS[group] ?? group;
  control.dataset.name = name;
  const label = make("label", { for: control.id, "data-term": name }, text);
  return make("div", { class: "field", "data-for": name }, label, control);
}

const entry = (placeholder = "", inputmode = "decimal") => make("input", { inputmode, placeholder });

function choice(values, automatic) {
  return make("select", {}, option("", automatic), ...values.map((value) => option(value)));
}

/** Whether a condition may be left out. */
const optional = ({ null: none, default: usual }) => (none ?? usual) !== undefined;

/** The condition called `condition`, if it is the only one: a label or a vector, with a field of its own. */
function single(card) {
  const { condition, ...others } = card?.conditions ?? {};
  return condition && !Object.keys(others).length ? condition : null;
}

/** The field of a condition by name: a choice of labels, or a number, or a list as JSON. */
function conditionField(name, takes) {
  const { dtype = "float32", shape = [], max = {}, classes, names } = takes;
  const axes = shape.map((size) => (typeof size === "string" ? `${size} ≤ ${max[size]}` : size)).join(" × ");
  const none = optional(takes) ? "none" : "choose …";
  let control;
  if (!shape.length && (names || classes <= 1000)) {
    control = choice(names ?? Array.from({ length: classes }, (_, k) => String(k)), none);
  } else if (!shape.length && dtype === "bool") control = choice(["false", "true"], none);
  else control = entry(shape.length ? `[${axes}] as JSON` : dtype, shape.length ? "text" : "decimal");
  control.id = `conditions-${name}`;
  Object.assign(control.dataset, { field: `conditions.${name}`, group: "conditions", key: name });
  const kind = classes && !shape.length ? `${classes} classes` : `${dtype}${axes ? `, ${axes}` : ""}`;
  return make("div", { class: "field" },
    make("label", { for: control.id, "data-term": "conditions" }, name), control,
    make("p", { class: "hint" }, optional(takes) ? `${kind}; may be left out` : kind));
}

/** The field of a free axis. */
function sizeField(name, { min = 1, max, multiple = 1 }) {
  const control = entry(`${min} to ${max}`, "numeric");
  control.id = `shape-${name}`;
  Object.assign(control.dataset, { field: `shape.${name}`, group: "shape", key: name });
  return make("div", { class: "field" },
    make("label", { for: control.id, "data-term": "shape" }, `Size of ${name}`), control,
    ...(multiple > 1 ? [make("p", { class: "hint" }, `multiples of ${multiple}`)] : []));
}

/** A field of the request that needs no knowledge of the model. */
function requestField(name, { default: usual }) {
  const control = entry(String(usual ?? ""));
  control.id = `fields-${name}`;
  Object.assign(control.dataset, { field: name, group: "fields", key: name });
  return make("div", { class: "field" }, make("label", { for: control.id, "data-term": name }, titled(name)), control);
}

/** Fill one <fieldset> with the controls of a setting. */
function build(side, solvers) {
  const kinds = { adaptive: "Error control or fixed steps", fixed: "Fixed steps", multistep: "Multistep", stochastic: "Stochastic" };
  const groups = Object.entries(kinds).map(([kind, title]) => {
    const those = solvers.filter((solver) => solver.kind === kind);
    return make("optgroup", { label: title }, ...those.map((s) => option(s.name, `${s.name} · order ${s.order}`)));
  });
  const radio = (value, text) => {
    const input = make("input", { type: "radio", name: `${side}-mode`, value, "data-name": "mode" });
    input.checked = value === "tolerance";
    return make("label", {}, input, ` ${text}`);
  };
  const families = [...Object.keys(catalogue.grids), "times"];
  const parameters = families.flatMap((name) => Object.keys(gridParameters(name)));
  const grids = families.map((name) => option(name, name === "times" ? "custom times" : name));
  const more = Object.entries(catalogue.settings).filter(([name]) => !OWN.includes(name));
  const control = ({ kind, default: automatic, choices }) =>
    choices.length ? choice(choices.filter((value) => value !== automatic), automatic ?? "automatic") : entry(automatic ?? "automatic", kind === "integer" ? "numeric" : "decimal");
  $(side).replaceChildren(
    make("legend", {}, make("span", { class: "key", "aria-hidden": "true" }), side === "a" ? "Solver A" : "Solver B"),
    field(side, "solver", "Solver", make("select", {}, ...groups, option(BUDGET, "the service's choice for a budget"))),
    make("p", { class: "hint", id: `${side}-why` }),
    make("div", { class: "pair", "data-for": BUDGET, hidden: "" },
      field(side, "budget_max_error", "Max error", entry("no bound")),
      field(side, "budget_max_nfe", "Max NFE", entry("no bound", "numeric")),
      field(side, "budget_max_ms", "Max ms", entry("no bound"))),
    make("div", { class: "modes", role: "group", "aria-label": "How steps are chosen", "data-for": "mode" },
      radio("tolerance", "error control"), radio("steps", "fixed steps")),
    make("div", { class: "pair" },
      field(side, "tolerance", "Tolerance", entry(TOLERANCE)),
      field(side, "steps", "Steps", entry("", "numeric")),
      field(side, "grid", "Grid", make("select", {}, ...grids))),
    make("div", { class: "pair" }, ...parameters.map((name) => field(side, `grid_${name}`, name, entry()))),
    make("p", { class: "hint", "data-for": "cost" }),
    make("details", { "data-for": "more" }, make("summary", {}, "More"),
      make("div", { class: "pair" }, ...more.map(([name, about]) => field(side, name, titled(name), control(about))))),
  );
}

/** The tolerances of a setting as one text, as in a solver's text; empty if they are the usual ones. */
function tolerance({ rtol, atol }) {
  if (!rtol && !atol) return "";
  const [first, second] = [rtol, atol].map((value) => value || TOLERANCE);
  return first === second ? first : `${first}/${second}`;
}

export class Form {
  /** @param models lines of /v1/models */
  constructor(models) {
    this.b = null;
    const solvers = [...catalogue.solvers.values()].filter(({ name }) => name !== TUNED);
    for (const side of ["a", "b"]) build(side, solvers);
    $("fields").replaceChildren(...Object.entries(catalogue.fields).map((one) => requestField(...one)));
    this.offer(models);
    this.arrange();
  }

  /** Offer these models, and keep the one that is chosen if it is among them. @param models lines of /v1/models */
  offer(models) {
    this.models = models;
    const chosen = $("model").value;
    const note = { served: "", loading: " (loading)", unavailable: " (unavailable)" };
    const text = ({ name, status, sampling }) =>
      `${name}${note[status] ?? ""}${sampling && sampling.solver.length < 40 ? ` · ${sampling.solver}` : ""}`;
    $("model").replaceChildren(...models.map((model) => option(model.name, text(model))));
    if (models.some(({ name }) => name === chosen)) $("model").value = chosen;
    this.#offerTuned();
  }

  /** Offer the solvers tuned for the chosen model, each with its steps. */
  #offerTuned() {
    const tuned = this.models.find((model) => model.name === $("model").value)?.tuned ?? [];
    for (const side of ["a", "b"]) {
      const list = $(`${side}-solver`);
      if ((list.dataset.tuned ?? "") === tuned.join()) continue;
      list.dataset.tuned = tuned.join();
      list.querySelector(`.${TUNED}`)?.remove();
      const those = tuned.map((text) => option(text));
      if (tuned.length) list.prepend(make("optgroup", { class: TUNED, label: "Tuned for this model" }, ...those));
    }
  }

  /**
   * Put a view into the fields. An unknown model or solver is kept, so that the service can report it.
   * @param why says why solver A is the one that it is, if nobody chose it; undefined leaves what is said
   */
  fill(view, why) {
    if (why !== undefined) $("a-why").textContent = why;
    for (const key of COMMON) this.#put($(key), view[key]);
    this.#offerTuned();
    for (const control of $("common").querySelectorAll("[data-group]")) this.#put(control, view[control.dataset.group][control.dataset.key] ?? "");
    $("compare").checked = view.b !== null;
    this.b = view.b ?? this.b ?? second();
    this.#fillSetting("a", view.a);
    this.#fillSetting("b", this.b);
    this.arrange();
  }

  #put(control, value) {
    if (control.tagName === "SELECT" && value && ![...control.options].some((o) => o.value === value)) {
      control.append(option(value));
    }
    control.value = value;
  }

  #fillSetting(side, setting) {
    for (const control of $(side).querySelectorAll("[data-name]")) {
      const name = control.dataset.name;
      if (control.type === "radio") control.checked = control.value === setting.mode;
      else if (name.startsWith("grid_")) this.#put(control, setting[name] ?? this.#initial(name.slice(5)));
      else if (name === "grid") this.#put(control, setting.grid || "uniform");
      else if (name === "tolerance") control.value = tolerance(setting);
      else this.#put(control, setting[name] ?? "");
    }
  }

  #initial(parameter) {
    return [...Object.keys(catalogue.grids), "times"].map(gridParameters).find((values) => parameter in values)[parameter];
  }

  /** Read the fields into a view; `kept` supplies everything that is not in the form. */
  read(kept) {
    const view = { ...kept };
    for (const key of COMMON) view[key] = $(key).value;
    if ($("conditional").hidden) view.condition = view.guidance = "";
    for (const control of $("common").querySelectorAll("[data-group]")) {
      const { group, key } = control.dataset;
      view[group] = { ...view[group], [key]: control.value };
    }
    if (view.model !== kept.model) Object.assign(view, { conditions: {}, shape: {} });
    view.a = this.setting("a");
    this.b = this.setting("b");
    view.b = $("compare").checked ? this.b : null;
    return view;
  }

  /** Read the fields of one solver. @returns {import("./view.js").Setting} */
  setting(side) {
    const setting = {};
    const budgeted = $(`${side}-solver`).value === BUDGET;
    for (const control of $(side).querySelectorAll("[data-name]")) {
      const used = !control.closest("[hidden]:not(fieldset)") && (!budgeted || /^(solver|budget_)/.test(control.dataset.name));
      const { value } = control;
      if (control.dataset.name === "tolerance") {
        if (used && value.trim()) [setting.rtol, setting.atol = setting.rtol] = value.split("/").map((part) => part.trim());
      } else if (control.type === "radio" ? control.checked : used && value !== "") setting[control.dataset.name] = value;
    }
    if (setting.solver !== BUDGET && spelled(setting) && !catalogue.solvers.get(setting.solver).parameters.rtol) setting.mode = "steps";
    if (setting.grid === "uniform") delete setting.grid;
    return setting;
  }

  /** Show the fields that belong to the chosen solvers and hide the others. */
  arrange() {
    this.#offerTuned();
    $("b").hidden = !$("compare").checked;
    for (const side of ["a", "b"]) {
      const chosen = $(`${side}-solver`).value;
      if (chosen === BUDGET) {
        const limits = [...$(side).querySelectorAll("[data-field=budget]")];
        const shown = !limits[0].closest("[data-for=budget]").hidden; // then an empty field is deliberate
        if (!shown && limits.every((control) => control.value === "")) limits[0].value = "0.01";
        for (const element of $(side).querySelectorAll("[data-for]")) {
          element.hidden = element.dataset.for !== "solver" && !element.dataset.for.startsWith(BUDGET);
        }
        continue;
      }
      const solver = catalogue.solvers.get(chosen);
      const takes = solver?.parameters ?? {}; // a text has all settings, until the service resolves it
      const tolerance = $(side).querySelector("[value=tolerance]");
      const fixed = !takes.rtol || !tolerance.checked;
      if (solver && fixed && $(`${side}-steps`).value === "") $(`${side}-steps`).value = "20";
      const parameters = Object.keys(gridParameters($(`${side}-grid`).value));
      const explicit = $(`${side}-grid`).value === "times";
      const onGrids = (name) => [...catalogue.solvers.values()].some(({ kind, parameters }) => kind !== "adaptive" && name in parameters);
      const shown = (name) => {
        if (name.startsWith("grid_")) return takes.grid && fixed && parameters.includes(name.slice(5));
        if (name === "mode") return takes.rtol;
        if (name === "tolerance") return takes.rtol && !fixed;
        if (name in catalogue.settings) return name in takes && (fixed ? onGrids(name) : !["steps", "grid"].includes(name)) && !(explicit && name === "steps");
        return name === "solver" || (solver && ["more", "cost"].includes(name));
      };
      for (const element of $(side).querySelectorAll("[data-for]")) element.hidden = !shown(element.dataset.for);
      for (const element of $(side).querySelectorAll("[data-for=more] .field > *")) {
        const automatic = usual(chosen, element.dataset.name);
        if (element.tagName === "SELECT") element.options[0].textContent = automatic ?? "automatic";
        else if (element.tagName === "INPUT") element.placeholder = automatic ?? "automatic";
      }
      $(side).querySelector("[data-for=cost]").textContent = solver ? cost(solver, this.setting(side)) : "";
    }
  }

  /** Empty the fields of conditions and sizes: another model is chosen. */
  forget() {
    $("condition").value = $("guidance").value = "";
    delete $("inputs").dataset.of;
    $("inputs").replaceChildren();
  }

  /** Show fields for the conditions by name and the free axes of a model, filled from a view. */
  #tell(card, view) {
    const takes = Object.entries(single(card) ? {} : (card?.conditions ?? {}));
    const flags = new Set(takes.map(([, { null: none }]) => none?.flag)); // requests do not give these
    const conditions = takes.filter(([name]) => !flags.has(name));
    const axes = Object.entries(card?.axes ?? {}).filter(([name]) => card.event_shape.includes(name));
    const of = JSON.stringify([card?.name, conditions, axes]);
    if ($("inputs").dataset.of === of) return; // keeps what is being typed
    $("inputs").dataset.of = of;
    $("inputs").replaceChildren(...conditions.map((one) => conditionField(...one)), ...axes.map((one) => sizeField(...one)));
    for (const control of $("common").querySelectorAll("[data-group]")) this.#put(control, view[control.dataset.group][control.dataset.key] ?? "");
    for (const label of $("inputs").querySelectorAll("[data-term]")) explain(label);
    if (this.marked) this.mark(...this.marked); // the fields are new
  }

  /** Show the fields of a label or a vector if the model takes one, and one for each condition by name and free axis. */
  describe(about, card, view) {
    $("about").textContent = about;
    this.#tell(card, view);
    const takes = single(card);
    const guided = Object.values(card?.conditions ?? {}).some((one) => (one.null ?? null) !== null);
    $("condition").closest(".field").hidden = takes === null && $("condition").value === "";
    $("conditional").hidden = takes === null && !guided && $("condition").value === "" && $("guidance").value === "";
    const names = takes?.names ?? Array.from({ length: takes?.classes ?? 0 }, (_, k) => String(k));
    $("classes").replaceChildren(...names.map((name) => option(name)));
    const label = names.length ? `${names[0]} … ${names.at(-1)}` : "";
    const expected = label || (takes ? `[${takes.shape.join(" × ")} numbers]` : "");
    $("condition").placeholder = optional(takes ?? {}) ? `${expected}, or none` : expected;
    $("guidance").closest(".field").hidden = takes !== null && takes.null === undefined && $("guidance").value === "";
  }

  /** Mark the fields a problem names; `errors` is the service's list of {field, message}. */
  mark(errors = [], side = null) {
    this.marked = [errors, side];
    for (const control of document.querySelectorAll("#form [aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
    for (const { field: name } of errors) {
      const text = !spelled({ solver: $(`${side ?? "a"}-solver`).value }); // then it has all settings
      const root = text && name in catalogue.settings ? "solver" : name.split(".")[0];
      const [one, all] = [name, root].map((field) => `[data-field~="${CSS.escape(field)}"]`);
      for (const control of document.querySelectorAll(`#common ${one}, #common ${all}, #${side ?? "a"} ${all}`)) {
        if (control.closest(".field[hidden]")) continue;
        const folded = control.closest("details");
        if (folded) folded.open = true;
        control.setAttribute("aria-invalid", "true");
        control.setAttribute("aria-describedby", "problem");
      }
    }
  }
}
