// The state of the service (ready, starting, without models, unreachable) and what the page shows in each.
import * as api from "./api.js";
import { $, button, make } from "./dom.js";
import { keyForm, line } from "./problem.js";
import { learn } from "./view.js";

const AGAIN = 2000; // milliseconds until the next request to the service
const SECTIONS = ["figures", "facts", "trace", "finder", "elsewhere"];

/** Show why there is nothing to draw; null shows the page as usual. @param action a button or form that may help */
export function show(state, action) {
  $("state").hidden = state === null;
  for (const id of SECTIONS) $(id).hidden = state !== null;
  $("form").hidden = state !== null;
  document.body.dataset.state = state?.name ?? "";
  if (!state) return;
  const parts = state.parts.map((part) => make("p", {}, ...part));
  $("state").replaceChildren(make("h2", {}, state.title), ...parts, action);
  $("sample").hidden = true;
}

const code = (text) => make("code", {}, text);

export const down = () => ({
  name: "down",
  title: "No connection to the service",
  parts: [
    ["Nothing answers at ", code(location.origin), ". Start the service with ", code("make serve"), " or ", code("docker-compose up"), "."],
    ["This page connects automatically once it does."],
  ],
});

export const empty = () => ({
  name: "empty",
  title: "No models yet",
  parts: [
    ["The service is running, but its model repository is empty. ", code("make models"), " trains the models that come with Pathline; ",
      code("python -m training fit vectors --data points.csv --name points"), " trains one on your own data."],
    ["New models appear here automatically."],
  ],
});

export const starting = (pending) => ({
  name: "starting",
  title: "The service is starting",
  parts: [
    pending.length ? ["Still to load: ", pending.join(", "), "."] : ["Its models are being loaded."],
    ["The first start takes longer, because networks are compiled for this machine."],
  ],
});

/** The service requires a key for every request. */
export const locked = (error) => ({ name: "locked", title: "This service needs an API key", parts: [[line(error)]] });

/**
 * Look for models to draw from, and ask again until there is one.
 * @param arrived called with {models} once a model is there
 */
export async function watch(arrived, failed) {
  let timer = 0;
  const again = () => button("Try now", look);
  const look = async () => {
    clearTimeout(timer);
    try {
      const [{ models }, catalogue] = await Promise.all([api.get("v1/models"), api.get("v1/solvers")]);
      learn(catalogue);
      const waits = models.some((model) => model.status === "loading") && !models.some((model) => model.status === "served");
      if (models.length && !waits) {
        show(null);
        return arrived({ models });
      }
      show(models.length ? starting(models.filter((model) => model.status === "loading").map((model) => model.name)) : empty(), again());
      $("service").textContent = models.length ? "starting …" : "ready, no models";
    } catch (error) {
      if (error.status === 401) {
        $("service").textContent = "API key needed";
        return show(locked(error), keyForm());
      }
      if (error.status) return failed(error);
      show(down(), again());
      $("service").textContent = "not reachable";
    }
    timer = setTimeout(look, AGAIN);
  };
  await look();
}

/** Show the state of the service in the header. @returns {Promise<boolean>} whether that is about to change */
export async function tell(models) {
  const count = (status) => models.filter((model) => model.status === status).length;
  const [served, loading, unavailable] = ["served", "loading", "unavailable"].map(count);
  const more = unavailable ? `, ${unavailable} unavailable` : "";
  if (loading) {
    $("service").textContent = `${served} of ${served + loading} models loaded${more}`;
    return true;
  }
  try {
    const { device } = await api.get("readyz");
    $("service").textContent = `ready on ${device}, ${served} model${served === 1 ? "" : "s"}${more}`;
    return false;
  } catch (error) {
    if (error.status) $("service").textContent = error.status === 503 ? "not ready" : error.title;
    return error.status === 503;
  }
}

/** The rows and seconds of the largest network calls of a model of late; empty if it has made none. */
export async function pace(model) {
  const load = await api.get("v1/load").catch(() => null);
  return load?.models.find((one) => one.model === model && one.operation === "sample")?.tick_s.at(-1) ?? {};
}

let waits = false;

/** Show that the service does not answer, and call `back` once it does again. */
export function lost(back) {
  $("service").textContent = "not reachable";
  if (waits) return;
  waits = true;
  const look = async () => {
    try {
      await api.get("livez");
    } catch (error) {
      if (!error.status) return setTimeout(look, AGAIN);
    }
    waits = false;
    back();
  };
  setTimeout(look, AGAIN);
}
