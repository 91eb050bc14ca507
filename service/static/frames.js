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

/** Follow a request whose answer is known by the stream; `progress` hears how far it is, as a text. */
export async function framesOf(body, answer, signal, progress) {
  const frames = [];
  for await (const { event, data } of api.stream({ ...body, save_at: times(answer), trace: "none" }, signal)) {
    if (event === "sample") frames.push({ t: data.t, states: data.states });
    if (event === "progress") progress(`${data.nfe} evaluations, ${Math.round(100 * data.share)} %`);
    if (event === "completed") return frames;
  }
  throw new api.Problem("The stream ended before the samples were done", "The connection was cut; animate again.");
}
