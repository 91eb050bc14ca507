// The introduction: three steps that explain the page, shown until dismissed. See early.js for the first visit.
import { $ } from "./dom.js";

const KEY = "pathline-introduced";
const root = document.documentElement;
let number = 0;

function dismiss() {
  delete root.dataset.intro;
  try {
    localStorage.setItem(KEY, "yes");
  } catch {
    // then it stays away only until the page is loaded again
  }
}

function show(step) {
  number = step;
  const steps = [...$("intro").querySelectorAll(".step")];
  const last = step === steps.length - 1;
  steps.forEach((element, k) => (element.hidden = k !== step));
  $("intro-skip").hidden = last;
  $("intro-back").hidden = step === 0;
  $("intro-next").textContent = last ? "Done" : "Next";
  root.dataset.intro = "";
  $("intro-next").focus();
}

export function listen() {
  $("intro-skip").addEventListener("click", dismiss);
  $("intro-back").addEventListener("click", () => show(number - 1));
  $("intro-next").addEventListener("click", () => ($("intro-next").textContent === "Done" ? dismiss() : show(number + 1)));
  $("explain").addEventListener("click", () => {
    show(0);
    $("intro").scrollIntoView({ block: "nearest" });
  });
}
