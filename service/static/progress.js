// The progress of a drawing: its share, the time left, and the button that cancels it.
import { $ } from "./dom.js";

const QUICK = 400; // milliseconds within which a drawing needs no progress
let slow = null; // {run, timer, passed} of the drawing under way

/**
 * Show the progress of a run and offer to cancel it, once it has taken a while: a quick drawing leaves the form as it is.
 * @param run null when nothing is under way @param text the text to show then
 */
export function progress(run, text = "") {
  if (run) {
    slow ??= { passed: false, timer: setTimeout(() => ((slow.passed = true), tell(slow.run)), QUICK) };
    slow.run = run;
  } else if (slow) {
    clearTimeout(slow.timer);
    slow = null;
  }
  $("results").setAttribute("aria-busy", String(Boolean(run) && !run.share));
  tell(slow?.passed ? run : null, text);
}

function tell(run, text = "") {
  const share = run && run.share > 0 ? run.share : null;
  const left = run?.left > 1 ? `, about ${run.left < 90 ? `${Math.ceil(run.left)} s` : `${Math.ceil(run.left / 60)} min`} left` : "";
  $("busy").textContent = run ? `${share ? `${Math.floor(100 * share)} %${left}` : "drawing …"} · ${run.label}` : text;
  $("share").hidden = $("cancel").hidden = !run;
  $("draw").hidden = Boolean(run);
  if (share) $("share").value = share;
  else $("share").removeAttribute("value");
}
