// The state of the service (ready, starting, without models, unreachable) and what the page shows in each.
import * as api from "./api.js";
import { $, button, make } from "./dom.js";

const AGAIN = 2000; // milliseconds until the service is asked again
const SECTIONS = ["figures", "trace", "finder", "elsewhere"];

/** Show why there is nothing to draw; null shows the page as usual. */
export function show(state, retry) {
  $("state").hidden = state === null;
  for (const id of SECTIONS) $(id).hidden = state !== null;
  $("form").hidden = state !== null;
  document.body.dataset.state = state?.name ?? "";
  if (!state) return;
  const parts = state.parts.map((part) => make("p", {}, ...part));
  $("state").replaceChildren(make("h2", {}, state.title), ...parts, button("Try now", retry));
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

/**
 * Find out what there is to draw, and ask again until there is something.
 * @param arrived called with {models, solvers} once a model is there
 */
export async function watch(arrived, failed) {
  let timer = 0;
  const look = async () => {
    clearTimeout(timer);
    try {
      const [{ models }, { solvers }] = await Promise.all([api.get("v1/models"), api.get("v1/solvers")]);
      const waits = models.some((model) => model.status === "loading") && !models.some((model) => model.status === "served");
      if (models.length && !waits) {
        show(null);
        return arrived({ models, solvers });
      }
      show(models.length ? starting(models.filter((model) => model.status === "loading").map((model) => model.name)) : empty(), look);
      $("service").textContent = models.length ? "starting …" : "ready, no models";
    } catch (error) {
      if (error.status) return failed(error);
      show(down(), look);
      $("service").textContent = "not reachable";
    }
    timer = setTimeout(look, AGAIN);
  };
  await look();
}

/** Say in the header how the service is, and say it anew until it is ready. */
export async function tell(models) {
  const served = models.filter((model) => model.status === "served").length;
  const count = `${served} model${served === 1 ? "" : "s"}${served < models.length ? `, ${models.length - served} unavailable` : ""}`;
  try {
    const { device } = await api.get("readyz");
    $("service").textContent = `ready on ${device}, ${count}`;
  } catch (error) {
    $("service").textContent = error.status === 503 ? "starting …" : error.title;
    if (error.status === 503) setTimeout(() => tell(models), AGAIN);
  }
}
