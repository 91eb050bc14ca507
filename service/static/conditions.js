// What samples are drawn of, apart from how: the model, its conditions, the sizes of its free axes, and guidance.
const known = new Map(); // by model: what its card says of conditions

/** Remember what a model's card says of its conditions: {condition, conditions}. */
export const learn = (model, card) => known.set(model, { condition: card.condition ?? null, conditions: card.conditions ?? {} });

/** The members of a request that say what is drawn. */
export function subject({ model, condition, conditions, shape, guidance }) {
  return { model, condition, conditions, shape, guidance };
}

const depth = (value) => (Array.isArray(value) ? 1 + depth(value[0]) : 0);

/** How deep the lists of one sample's condition are. */
function own(model, name) {
  const { condition, conditions } = known.get(model) ?? {};
  return name === undefined ? Number(condition?.kind === "vector") : (conditions?.[name]?.shape?.length ?? 0);
}

/** Whether a request has conditions sample by sample, so that its samples cannot be drawn in other numbers. */
export function each({ model, condition, conditions = {} }) {
  const several = Object.entries(conditions).some(([name, value]) => depth(value) > own(model, name));
  return several || depth(condition) > own(model);
}

/** What one sample of a request is drawn of. */
export function subjectOf(body, index) {
  const { model, condition, conditions } = body;
  const at = (value, name) => (depth(value) > own(model, name) ? value[index] : value);
  const named = conditions && Object.fromEntries(Object.entries(conditions).map(([name, value]) => [name, at(value, name)]));
  return { ...subject(body), condition: at(condition), conditions: named };
}
