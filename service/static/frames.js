// States of the samples on their way from noise to data, as [{t, states}] in the order of t.
import * as api from "./api.js";

const COUNT = 40;

/** Times at which states are asked for: any under error control, points of the grid with fixed steps. */
export function times(answer) {
  const { t, h } = answer.trace;
  if (answer.solver.rtol !== undefined) return Array.from({ length: COUNT + 1 }, (_, k) => k / COUNT);
  const grid = [...t, t.at(-1) + h.at(-1)];
  grid[grid.length - 1] = 1;
  const every = Math.ceil((grid.length - 1) / COUNT);
  return grid.filter((_, k) => k % every === 0 || k === grid.length - 1);
}

/** Ask for the states of a request whose answer is known, by the stream; `progress` hears {nfe, t}. */
export async function framesOf(body, answer, signal, progress) {
  const found = await api.sample({ ...body, save_at: times(answer), trace: "none" }, signal);
  return found.saved.t.map((t, k) => ({ t, states: found.saved.states.map((states) => states[k]) }));
}
