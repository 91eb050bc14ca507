// The subject of a drawing, apart from how it is solved: model, conditions, sizes of free axes, and guidance.
import { catalogue } from "./view.js";

const known = new Map(); // by model: the conditions in its card

/** Remember the conditions in a model's card. */
export const learn = (model, card) => known.set(model, card.conditions ?? {});

/** The members of a request that are its subject. */
export function subject({ model, condition, conditions, shape, guidance }) {
  return { model, condition, conditions, shape, guidance };
}

/** The subject, and the other fields that samples depend on. */
export function drawn(body) {
  return { ...subject(body), ...Object.fromEntries(Object.keys(catalogue.fields).map((name) => [name, body[name]])) };
}

const depth = (value) => (Array.isArray(value) ? 1 + depth(value[0]) : 0);

/** How deep the lists of one sample's condition are. */
function own(model, name = "condition") {
  return known.get(model)?.[name]?.shape?.length ?? 0;
}

/** Whether a request has a condition for each sample, so that the number of samples cannot be changed. */
export function each({ model, condition, conditions = {} }) {
  const several = Object.entries(conditions).some(([name, value]) => depth(value) > own(model, name));
  return several || depth(condition) > own(model);
}

/** The subject of one sample of a request. */
export function subjectOf(body, index) {
  const { model, condition, conditions } = body;
  const at = (value, name) => (depth(value) > own(model, name) ? value[index] : value);
  const named = conditions && Object.fromEntries(Object.entries(conditions).map(([name, value]) => [name, at(value, name)]));
  return { ...subject(body), condition: at(condition), conditions: named };
}
