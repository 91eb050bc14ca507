// The page, put together: form -> streams -> figures, verdict, chart and snippets.
import * as api from "./api.js";
import * as code from "./code.js";
import { each, learn, subject, subjectOf } from "./conditions.js";
import { $, button } from "./dom.js";
import * as download from "./download.js";
import { Run } from "./drawing.js";
import { Field } from "./field.js";
import { Figures } from "./figures.js";
import * as facts from "./facts.js";
import { Finder, recommended } from "./finder.js";
import { Form } from "./form.js";
import * as intro from "./intro.js";
import { Player, glide } from "./player.js";
import * as problem from "./problem.js";
import { progress } from "./progress.js";
import * as sample from "./sample.js";
import * as state from "./state.js";
import * as terms from "./terms.js";
import * as trace from "./trace.js";
import * as verdict from "./verdict.js";
import * as views from "./view.js";

const LONG = 60; // seconds of drawing that are not begun unasked
const PATIENCE = 120; // seconds that a drawing is allowed if the service's own limit was too short
const AGAIN = 2000; // milliseconds until models that are still loading are checked again
const figures = new Figures((index) => choose(index));
const player = new Player((t) => figures.move(t));
const field = new Field();
let form;
let finder;
let view;
let models = [];
let asking = null; // the question, whether to draw, that is being looked into
let running = null; // the drawing under way: an AbortController
let studying = null; // the follow-up computations of the last one: an AbortController
let drawn = ""; // its requests, as text
let later = 0; // the timer of the next check for models
let byDefault = false; // whether nobody chose solver A
let examples = []; // some real data of the model
let byChange = false; // whether the drawing began with a change of a field
let chosen = null; // {index, followed}: the sample that was picked

const served = (name) => models.find((model) => model.name === name);
/** How many samples fill a figure well. */
const usual = (name) => ((served(name)?.data_shape?.length ?? 1) > 1 ? "36" : "500");

function start({ models: list }) {
  models = list;
  form = new Form(models);
  finder = new Finder(
    () => {
      const own = figures.runs.map((run) => run.response?.solver.text).filter(Boolean);
      return { body: views.request(view, view.a), own: [...new Set(own)] };
    },
    (text) => {
      byDefault = false;
      view.a = { solver: text, mode: "tolerance" };
      form.fill(view, "");
      redraw();
    },
  );
  listen();
  tell();
  return open(location.hash);
}

/** Show the state of the service, and check again while models are loading. */
async function tell() {
  const changes = await state.tell(models);
  clearTimeout(later);
  if (changes) later = setTimeout(refresh, AGAIN);
}

/** Show the view of an address, and draw it. */
async function open(hash) {
  const mine = views.fromHash(hash);
  view = mine;
  const there = models.filter((model) => model.status === "served");
  view.model ||= (there.find((model) => model.name === "moons") ?? there[0] ?? models[0]).name;
  view.num_samples ||= usual(view.model);
  figures.real = examples = [];
  byDefault = view.a === null;
  let why = "";
  if (byDefault) [view.a, why] = initial(await ask(view.model));
  if (view !== mine) return; // another address was opened meanwhile
  form.fill(view, why);
  $("colour").value = view.colour;
  $("real").checked = view.real === "";
  figures.axes = [Number(view.x || 0), Number(view.y || 1)];
  for (const id of ["velocity", "density"]) $(id).checked = view[id] !== "";
  const drawing = drawUnlessLong(); // requested first, so that the service computes before it describes
  describe();
  return drawing;
}

/** What the service says of a model: its entry, the version that answers, and what was measured of its solvers. */
async function ask(name) {
  const path = `v1/models/${encodeURIComponent(name)}`;
  const entry = await api.get(path).catch(() => null);
  const version = entry?.served?.[0] ?? null;
  const frontier = version?.frontier ? await api.get(`${path}/frontier`).catch(() => null) : null; // solvers can still be measured
  return { entry, version, frontier };
}

/** The solver that a model is drawn with if nobody chose one, and why it is. */
function initial({ frontier }) {
  const best = recommended(frontier, view.guidance);
  const { sampling, field: kind } = served(view.model) ?? {};
  if (best) return [{ solver: best.solver, mode: "tolerance" }, "The cheapest that keeps 1 % of the spread, as measured with this model."];
  if (sampling) return [{ solver: sampling.solver, mode: "tolerance" }, "The solver of its authors."];
  if (kind === "average_velocity") return [{ solver: "euler", mode: "steps", steps: "1" }, "One step, as this model is made for."];
  return [{ solver: "dopri5", mode: "tolerance" }, "The default of the service."];
}

async function describe() {
  const model = served(view.model);
  const shape = model?.data_shape?.length === 1 ? `${model.data_shape[0]}-dimensional` : model?.data_shape?.join(" × ");
  const about = model?.status === "served" ? `version ${model.version}, ${shape}, ${model.dtype}` : "";
  const { entry, version, frontier } = await ask(view.model);
  if (entry && entry.name !== view.model) return; // another was chosen meanwhile
  const reason = entry?.unavailable?.[0]?.reason ?? "";
  // if a prelude makes the network's conditions, requests give the inputs of the prelude
  const card = version?.card.prelude ? { ...version.card, conditions: version.conditions } : version?.card;
  if (card) learn(entry.name, card);
  form.describe(about || reason, card, view);
  $("facts").hidden = !version;
  examples = version?.examples ?? [];
  if (version) facts.show(entry.name, version, recommended(frontier, view.guidance));
  showReal();
  finder.stored(frontier, view.guidance);
}

/** Draw real data beneath the points as the view says; pictures are in the model card. */
function showReal() {
  const flat = examples.length > 0 && !Array.isArray(examples[0]?.[0]);
  $("real-data").hidden = !flat;
  const real = flat && view.real === "" ? examples : [];
  if (real.length === figures.real.length) return;
  figures.real = real;
  if (!figures.runs.length) return;
  figures.measure();
  figures.paint();
}

/** About how many seconds the view takes to draw, by the pace of the service and the rows of its first sample; 0 if not known. */
async function seconds() {
  const { rows = 0, seconds: pace = 0 } = await state.pace(view.model);
  if (!rows) return 0;
  const bodies = [view.a, view.b].filter(Boolean).map((setting) => views.request(view, setting));
  const first = (body) => api.background({ ...body, ...subjectOf(body, 0), num_samples: 1 });
  const firsts = await Promise.all(bodies.map(first)).catch(() => []); // why it is refused, the drawing will show
  return (pace / rows) * firsts.reduce((sum, one) => sum + one.network_rows, 0) * Number(view.num_samples);
}

/** Draw, but ask first if it takes long. */
async function drawUnlessLong() {
  const mine = (asking = {});
  const long = Number(view.num_samples) > Number(usual(view.model)) ? await seconds() : 0;
  if (mine !== asking) return; // a newer drawing was asked for
  if (!(long > LONG)) return draw();
  running?.abort();
  const time = `About ${Math.ceil(long / 60)} minutes, at the pace of this service. Fewer samples or steps are faster.`;
  const begin = button("Draw anyway", draw, { class: "primary" });
  problem.show(new api.Problem("This drawing takes long", time), { action: begin, good: true });
}

/** Request everything the view shows. A newer drawing ends an older one; when cancelled, what has arrived stays. */
async function draw() {
  asking = null;
  running?.abort();
  studying?.abort();
  forgive();
  const mine = (running = new AbortController());
  if (view.seed.trim() === "") $("seed").value = view.seed = views.newSeed(); // both settings must have the same seed
  const shape = served(view.model)?.data_shape;
  const sides = view.b ? ["a", "b"] : ["a"];
  const runs = sides.map((side) => new Run(side, views.label(view[side]), views.request(view, view[side]), shape));
  if (!figures.runs.length) {
    document.documentElement.dataset.runs = runs.length; // makes room for them
    $("cards").dataset.layout = runs.length > 1 ? view.layout : "side";
  }
  drawn = requests(view);
  remember();
  finder.of(api.stringify(subject(runs[0].body)));
  code.show(runs.map((run) => run.body));
  $("summary").textContent = `${view.model} · ${view.num_samples} · ${runs.map((run) => run.label).join(" vs ")}`;
  progress(runs[0]);
  let run = runs[0];
  try {
    const moving = [];
    for (run of runs) {
      const mineAlone = run;
      moving.push(glide(run, () => moved(runs, mineAlone), mine.signal));
      await run.draw(view.timeout ? Number(view.timeout) : undefined, mine.signal, () => arrived(runs, mineAlone, mine));
      run.ended = true;
      figures.describe(run);
      if (run.response.status === "deadline") break;
    }
    performance.mark("shown");
    trace.draw(runs.filter((one) => one.response));
    await Promise.all(moving);
    if (mine.signal.aborted) return;
    settle(runs, "");
    late(runs);
    study(runs);
  } catch (error) {
    stop(error, runs, run, mine);
  }
}

/** The requests of a view, as text. */
const requests = (shown) => [shown.a, shown.b].filter(Boolean).map((setting) => api.stringify(views.request(shown, setting))).join();

/** Show the settings of solvers that were given as text in the fields, once the service has resolved them. */
function spell(runs) {
  $("summary").textContent = `${view.model} · ${view.num_samples} · ${runs.map((run) => run.label).join(" vs ")}`;
  const texts = runs.filter(({ side, solver }) => solver && view[side] && !views.spelled(view[side]));
  if (!texts.length) return;
  for (const { side, solver } of texts) view[side] = views.settingOf(solver);
  form.fill(view);
  drawn = requests(view);
  remember();
}

/** More of a run has arrived: the figures show it from its first states on. */
function arrived(runs, run, mine) {
  if (mine.signal.aborted) return;
  progress(run);
  spell(runs);
  if (figures.runs !== runs && (run.response || run.page?.frames.length)) {
    unchoose();
    verdict.clear();
    player.enable(false);
    figures.paths = {};
    figures.selected = null;
    figures.show(runs, view.layout);
    $("figures").hidden = false;
  } else if (figures.runs === runs) figures.widen();
  if (run.response && run.page) figures.describe(run);
}

/** The samples of a run have moved on their way; the slider follows. */
function moved(runs, run) {
  if (figures.runs !== runs) return;
  player.tell(run.page && !run.page.frames.length ? 1 : (run.t ?? 1)); // a page without states on the way just appears
  figures.paint();
}

/** A drawing has ended: its samples can be moved through t, and the whole page shows its end. */
function settle(runs, text) {
  if (figures.runs.length !== runs.length || figures.runs[0] !== runs[0]) figures.show(runs, view.layout);
  for (const run of runs) {
    run.ended = true;
    figures.describe(run);
  }
  progress(null, text);
  running = null;
  player.enable(runs.some((run) => run.frames.length));
  figures.widen();
  figures.move(null);
  document.body.dataset.drawn = location.hash; // what the browser tests wait for
}

/** If a deadline ended a drawing, say how much has arrived, and offer more time. */
function late(runs) {
  const stopped = runs.find((run) => run.response?.status === "deadline");
  if (!stopped) return;
  const { failed, samples } = stopped.response;
  const there = samples.length - failed.length;
  const share = `${there.toLocaleString("en")} of ${stopped.body.num_samples.toLocaleString("en")} samples of ${stopped.label}`;
  const detail = `${share} were finished in time. The samples received so far are shown.`;
  problem.show(new api.Problem("The time limit was reached", detail), { action: moreTime() });
}

const moreTime = () =>
  view.timeout
    ? null
    : button("Allow two minutes", () => {
        view.timeout = String(PATIENCE);
        draw();
      });

/** Compute everything that follows once the samples have arrived: error, colours, field, chosen sample. */
async function study(runs) {
  if (!runs.every((run) => run.response)) return;
  const { signal } = (studying = new AbortController());
  behind();
  if (view.sample !== "") choose(Number(view.sample));
  await verdict.judge(runs, signal, choose);
  if (figures.runs !== runs) return;
  for (const run of runs) figures.describe(run);
  await recolour();
  if (chosen) sample.show(chosen.index, runs, chosen.followed, chosen.densities);
  document.body.dataset.judged = location.hash; // what the browser tests wait for
}

/** A drawing failed, or was cancelled. */
function stop(error, runs, run, mine) {
  if (error.name === "AbortError" && !mine.cancelled) return; // a newer drawing took over
  mine.abort();
  running = null;
  if (!mine.cancelled) drawn = ""; // pressing Draw tries again
  const there = runs.filter((one) => one.response || one.page?.frames.length);
  for (const one of there) if (one.response) one.page = null;
  if (there.length) {
    settle(there, mine.cancelled ? "Cancelled: what arrived is shown." : "");
    trace.draw(there.filter((one) => one.response));
    study(there);
  } else {
    progress(null, mine.cancelled ? "Cancelled." : "");
    if (figures.runs.length) study(figures.runs); // the previous figure stays, and so does its verdict
  }
  if (mine.cancelled) return;
  if (!figures.runs.length) $("figures").hidden = true;
  // If the error is about one setting, the title says which; a lost connection is about none.
  const where = view.b && error.errors?.length ? ` (solver ${run.side.toUpperCase()})` : "";
  problem.show(error, { where, action: error.status === 504 ? moreTime() : null });
  form.mark(error.errors, run.side);
  if (error.errors?.length) $("settings").open = true;
  if (error.status === 404) refresh(); // the model is gone, and others may be, too
}

/** The service answers again after a lost connection. */
async function back() {
  await refresh();
  if ($("problem").hidden || running) return;
  const again = button("Draw again", redraw, { class: "primary" });
  problem.show(new api.Problem("The service is back"), { action: again, good: true });
}

/** Pick one sample: show its path and steps with each solver. */
async function choose(index) {
  const { runs } = figures;
  if (running || !runs.every((run) => run.response) || !(Number.isInteger(index) && index >= 0 && index < runs[0].response.samples.length)) return;
  const mine = (chosen = { index, followed: {}, densities: {} });
  view.sample = String(index);
  remember();
  figures.selected = index;
  figures.paths = {};
  figures.paint();
  sample.show(index, runs, mine.followed);
  try {
    for (const run of runs) {
      const path = await sample.follow(run, index);
      if (chosen !== mine) return;
      mine.followed[run.side] = path;
      figures.paths[run.side] = path;
      figures.paint();
      sample.show(index, runs, mine.followed);
    }
    trace.draw(runs, mine);
    for (const run of runs) mine.densities[run.side] = await sample.logDensity(run, index);
    if (chosen === mine) sample.show(index, runs, mine.followed, mine.densities);
  } catch (error) {
    if (chosen === mine) problem.show(error);
  }
  document.body.dataset.chosen = String(index); // what the browser tests wait for
}

/** Pick no sample. */
function unchoose() {
  chosen = null;
  figures.selected = null;
  figures.paths = {};
  sample.hide();
}

/** Colour the samples as the view says; the evaluations of each sample are requested when first needed. */
async function recolour() {
  const { runs } = figures;
  if (view.colour === "nfe" && runs.every((run) => run.response)) {
    for (const run of runs) {
      const stages = views.catalogue.solvers.get(run.solver.name)?.stages ?? 1;
      run.nfe ??= await sample.evaluations(run, stages).catch(() => null);
    }
  }
  if (figures.runs === runs) figures.paintBy(view.colour);
}

/** Show the velocity field and the log-density as the view says, if samples are points in the plane. */
async function behind() {
  const { planar, runs } = figures;
  if (!planar || each(runs[0].body)) return;
  figures.field = field;
  await field.want(subject(runs[0].body), figures.bounds, view, (text) => {
    $("field-busy").textContent = text;
    figures.paint();
  });
  document.body.dataset.behind = [field.velocity && "velocity", field.mesh && "density"].filter(Boolean).join(" ");
}

/** Put the view into the address; `push` makes it one that the browser's Back returns from. */
function remember(push = false) {
  const hash = `#${views.toHash(view)}`;
  if (hash !== location.hash) history[push ? "pushState" : "replaceState"](null, "", hash);
}

/** Take an error away: its cause has changed, or a drawing starts. */
function forgive() {
  problem.show(null);
  form.mark();
}

/** Read the form and draw, once for all events of one moment. */
let planned = false;
function redraw() {
  if (planned) return;
  planned = true;
  setTimeout(() => {
    planned = false;
    form.arrange();
    view = { ...form.read(view), timeout: "" };
    remember(true);
    drawUnlessLong();
  });
}

function changed(event) {
  const other = event.target.id === "model";
  if (other && $("num_samples").value === usual(view.model)) $("num_samples").value = usual($("model").value);
  if (other) {
    form.forget(); // another model has other conditions, or none
    view.sample = view.x = view.y = "";
    figures.axes = [0, 1];
    figures.real = examples = [];
  }
  if (event.target.closest("#a")) {
    byDefault = false;
    $("a-why").textContent = "";
  }
  byChange = true;
  if (other) another();
  else redraw();
}

/** Draw another model: with its own default, unless a solver was chosen. */
async function another() {
  const { value } = $("model");
  if (byDefault) {
    const about = await ask(value);
    if (value !== $("model").value) return; // yet another
    view = form.read(view);
    const [setting, why] = initial(about);
    form.fill({ ...view, a: setting }, why);
  }
  redraw();
  setTimeout(describe);
}

/** Draw when the button is pressed; after a change that was drawn already, play that drawing again without a request. */
function submitted(event) {
  event.preventDefault();
  if (planned) return; // the change that came with Enter or the press is about to be drawn
  const now = form.read(view);
  const same = requests(now) === drawn;
  if (byChange && same && $("problem").hidden) {
    byChange = false;
    if (!running) player.play();
  } else redraw();
}

function newSeed() {
  $("seed").value = views.newSeed();
  view.sample = "";
  byChange = false;
  redraw();
}

/** Models come and go: check for new ones whenever the page gets the focus again. */
async function refresh() {
  const list = await api.get("v1/models").catch(() => null);
  if (!list) return;
  if (api.stringify(list.models) !== api.stringify(models)) {
    models = list.models;
    form.offer(models);
    describe();
  }
  await tell();
}

function listen() {
  $("form").addEventListener("change", changed);
  $("form").addEventListener("input", forgive);
  $("form").addEventListener("submit", submitted);
  $("new-seed").addEventListener("click", newSeed);
  $("cancel").addEventListener("click", () => {
    if (!running) return;
    running.cancelled = true;
    running.abort();
  });
  for (const name of ["side", "over"]) {
    $(name).addEventListener("click", () => {
      view.layout = name;
      remember();
      figures.show(figures.runs, name);
    });
  }
  $("colour").addEventListener("change", () => {
    view.colour = $("colour").value;
    remember();
    recolour();
  });
  $("real").addEventListener("change", () => {
    view.real = $("real").checked ? "" : "no";
    remember();
    showReal();
  });
  for (const id of ["axis-x", "axis-y"]) {
    $(id).addEventListener("change", () => {
      [view.x, view.y] = [$("axis-x").value, $("axis-y").value];
      remember();
      figures.choose([Number(view.x), Number(view.y)]);
    });
  }
  for (const name of ["velocity", "density"]) {
    $(name).addEventListener("change", () => {
      view[name] = $(name).checked ? "1" : "";
      remember();
      behind();
    });
  }
  $("sample-index").addEventListener("change", () => {
    choose($("sample-index").value === "" ? NaN : Number($("sample-index").value));
    $("sample-index").value = chosen?.index ?? ""; // as before, if there is no such sample
  });
  $("sample-close").addEventListener("click", () => {
    view.sample = "";
    remember();
    unchoose();
    figures.paint();
    trace.draw(figures.runs);
  });
  code.listen();
  terms.listen();
  download.listen(() => figures.runs.filter((run) => run.response), problem.show);
  addEventListener("hashchange", () => open(location.hash));
  addEventListener("focus", refresh);
  api.connection.addEventListener("lost", () => state.lost(back));
  const repaint = () => {
    if (!figures.runs.length) return;
    figures.paintBy(view.colour);
    trace.draw(figures.runs.filter((run) => run.response), chosen);
    finder.draw();
  };
  addEventListener("themechange", repaint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(() => figures.runs.length && figures.paint()).observe($("cards"));
  addEventListener("resize", () => figures.runs.length && figures.paint());
  const narrow = matchMedia("(max-width: 54rem)");
  const fold = () => ($("settings").open = !narrow.matches); // there the figure comes first
  narrow.addEventListener("change", fold);
  fold();
}

intro.listen();
state.watch(start, problem.show).catch(problem.show);
