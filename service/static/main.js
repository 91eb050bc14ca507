// Puts the page together: form -> requests -> figures, chart and snippets.
import * as api from "./api.js";
import * as code from "./code.js";
import { Figures } from "./figures.js";
import { Form } from "./form.js";
import { framesOf } from "./frames.js";
import { Player } from "./player.js";
import * as problem from "./problem.js";
import * as trace from "./trace.js";
import * as views from "./view.js";

const $ = (id) => document.getElementById(id);
const figures = new Figures();
const player = new Player((t) => figures.paint(t));
let form;
let view;
let models = [];
let running = null;

const served = (name) => models.find((model) => model.name === name);
/** How many samples fill a figure well. */
const usual = (name) => ((served(name)?.data_shape?.length ?? 1) > 1 ? "36" : "100");

async function start() {
  const [list, solvers] = await Promise.all([api.get("v1/models"), api.get("v1/solvers")]);
  models = list.models;
  form = new Form(solvers.solvers, models);
  listen();
  api.get("readyz").then(
    ({ device }) => ($("service").textContent = `ready on ${device}, ${models.length} models`),
    (fault) => ($("service").textContent = fault.title),
  );
  await open(location.hash);
}

/** Show the view of an address, and draw it. */
async function open(hash) {
  view = views.fromHash(hash);
  view.model ||= (served("moons") ?? models.find((model) => model.status === "served") ?? models[0])?.name ?? "";
  view.num_samples ||= usual(view.model);
  form.fill(view);
  const drawing = draw(); // asked for first: the service is to compute before it describes
  describe();
  await drawing;
}

async function describe() {
  const model = served(view.model);
  const shape = model?.data_shape?.join(" × ");
  const about = model?.status === "served" ? `version ${model.version}, ${shape} numbers, ${model.dtype}` : "";
  const found = await api.get(`v1/models/${encodeURIComponent(view.model)}`).catch(() => null);
  if (found && found.name !== view.model) return; // another was chosen meanwhile
  const reason = found?.unavailable?.[0]?.reason ?? "";
  form.describe(about || reason, found?.served?.[0]?.card);
}

/** Ask for everything the view shows. A newer request ends an older one. */
async function draw() {
  running?.abort();
  const mine = (running = new AbortController());
  if (view.seed.trim() === "") $("seed").value = view.seed = views.newSeed(); // both settings must have the same
  const sides = view.b ? ["a", "b"] : ["a"];
  const bodies = Object.fromEntries(sides.map((side) => [side, views.request(view, view[side])]));
  remember();
  code.show(Object.values(bodies));
  busy(`drawing ${view.num_samples} samples …`);
  let side = "a";
  try {
    const runs = [];
    for (side of sides) {
      const answer = await api.sample(bodies[side], mine.signal);
      runs.push({ side, label: views.label(view[side]), body: bodies[side], answer });
    }
    player.close();
    figures.show(runs, view.layout);
    problem.show(null);
    form.mark();
    performance.mark("shown");
    if (view.animate) for (const run of runs) side = await follow(run, mine.signal);
    if (view.animate) play(runs);
    busy("");
    await trace.draw(runs);
    document.body.dataset.drawn = location.hash; // what the browser tests wait for
  } catch (error) {
    if (error.name === "AbortError") return;
    busy("");
    problem.show(error, view.b ? ` (solver ${side.toUpperCase()})` : "");
    form.mark(error.errors, side);
  }
}

/** Get the states of a run on their way through t. */
async function follow(run, signal) {
  busy(`following ${run.label} …`);
  run.frames = await framesOf(run.body, run.answer, signal, (done) => busy(`${run.label}: ${done}`));
  return run.side;
}

function play(runs) {
  figures.show(runs, view.layout);
  player.open(0, 1);
  player.play();
}

function busy(text) {
  $("busy").textContent = text;
  $("results").setAttribute("aria-busy", String(text !== ""));
}

const remember = () => history.replaceState(null, "", `#${views.toHash(view)}`);

/** Read the form and draw what it says; `animate` is "1" or "". */
function redraw(animate) {
  form.arrange();
  view = { ...form.read(view), animate };
  return draw();
}

function changed(event) {
  const other = event.target.id === "model";
  if (other && $("num_samples").value === usual(view.model)) $("num_samples").value = usual($("model").value);
  if (other) $("condition").value = $("guidance").value = ""; // another model has other classes, or none
  redraw("");
  if (other) describe();
}

function listen() {
  $("form").addEventListener("change", changed);
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    redraw("");
  });
  $("animate").addEventListener("click", () => redraw("1"));
  $("new-seed").addEventListener("click", () => {
    $("seed").value = views.newSeed();
    redraw("");
  });
  for (const name of ["side", "over"]) {
    $(name).addEventListener("click", () => {
      view.layout = name;
      remember();
      figures.show(figures.runs, name);
    });
  }
  code.listen();
  addEventListener("hashchange", () => open(location.hash));
  const repaint = () => {
    if (!figures.runs) return;
    figures.paint();
    trace.draw(figures.runs);
  };
  addEventListener("themechange", repaint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(() => figures.runs && figures.paint()).observe($("cards"));
}

start().catch((error) => {
  $("service").textContent = "not reachable";
  problem.show(error);
});
