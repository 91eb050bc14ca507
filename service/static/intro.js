// The introduction: three steps that explain the page, shown until dismissed.
import { $, button, make } from "./dom.js";

const KEY = "pathline-introduced";
const STEPS = [
  {
    title: "Noise flows to data",
    text: "A flow-matching model is a velocity field. Each sample starts as noise at t = 0 and follows the velocity until it is data at t = 1. Move the slider below the figure to watch.",
    picture: '<path d="M10 52C40 52 46 14 110 14M10 30C46 34 60 50 110 44M10 12C40 10 60 30 110 28"/><g class="a"><circle cx="110" cy="14" r="4"/><circle cx="110" cy="44" r="4"/><circle cx="110" cy="28" r="4"/></g><g class="quiet"><circle cx="10" cy="52" r="4"/><circle cx="10" cy="30" r="4"/><circle cx="10" cy="12" r="4"/></g>',
  },
  {
    title: "A solver asks the network",
    text: "Each call of the network gives the velocity at one point and time. A solver moves in steps and makes one or more calls for each of them. The number of calls (NFE) is what a sample costs.",
    picture: '<path d="M10 50C36 50 50 14 110 12"/><path class="b" d="M10 50L40 50L72 30L110 8"/><g class="b"><rect x="37" y="47" width="6" height="6"/><rect x="69" y="27" width="6" height="6"/><rect x="107" y="5" width="6" height="6"/></g><circle class="quiet" cx="10" cy="50" r="4"/>',
  },
  {
    title: "Error against cost",
    text: "With fewer evaluations, samples come faster but end farther from where they should. Compare two solvers on the same noise, or let “Find my solver” try ten and pick one for your budget.",
    picture: '<path d="M10 8V54H112"/><path class="a" d="M16 12C24 40 50 48 108 50"/><g class="a"><circle cx="20" cy="26" r="4"/><circle cx="40" cy="42" r="4"/><circle cx="96" cy="49.5" r="4"/></g>',
  },
];

function introduced() {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return true; // storage is closed to this page: it would come back every time
  }
}

function dismiss() {
  $("intro").hidden = true;
  try {
    localStorage.setItem(KEY, "yes");
  } catch {
    // then it stays away until the page is loaded again
  }
}

function show(number) {
  const { title, text, picture } = STEPS[number];
  const last = number === STEPS.length - 1;
  const art = make("div", { class: "art", "aria-hidden": "true" });
  art.innerHTML = `<svg viewBox="0 0 120 60" fill="none" stroke="currentColor" stroke-width="1.6">${picture}</svg>`;
  const next = button(last ? "Done" : "Next", () => (last ? dismiss() : show(number + 1)), { class: "primary" });
  const before = number ? [button("Back", () => show(number - 1))] : [];
  const skip = last ? [] : [button("Skip", dismiss, { class: "plain" })];
  $("intro").replaceChildren(
    art,
    make("div", {}, make("h2", {}, `${number + 1}/${STEPS.length} ${title}`), make("p", {}, text)),
    make("div", { class: "buttons" }, ...skip, ...before, next),
  );
  const moved = !$("intro").hidden;
  $("intro").hidden = false;
  if (moved) next.focus();
}

export function listen() {
  if (!introduced()) show(0);
  $("explain").addEventListener("click", () => {
    $("intro").hidden = true;
    show(0);
    $("intro").scrollIntoView({ block: "nearest" });
    $("intro").querySelector(".primary").focus();
  });
}
