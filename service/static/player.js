// The player: a slider and a button that move through t, and the glide of samples towards what has been computed.
import { $ } from "./dom.js";

const SECONDS = 3; // for the whole span, when it is played
const GLIDE = 0.7; // minimum seconds that samples take from noise to data while they are drawn
const REST = 3; // pause after a painting, in multiples of its duration, in which further samples can be received

/** Whether to show no motion: the page is hidden, or the system asks for less. */
export const still = () => document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Player {
  /** @param paint called with the time to show, or null for the end */
  constructor(paint) {
    this.paint = paint;
    this.timer = 0;
    $("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    $("time").addEventListener("input", () => {
      this.stop();
      this.#show(Number($("time").value));
    });
    this.enable(false);
  }

  /** Enable moving through t, or disable it while there is nothing to show; either way the end is shown. */
  enable(there) {
    this.stop();
    for (const id of ["time", "play"]) $(id).disabled = !there;
    this.tell(1);
  }

  /** Play from the beginning, or jump to the end if the system asks for less motion. */
  play() {
    if (still() && !this.touched) {
      this.touched = true; // a second press plays, as motion is then requested
      this.#show(1);
      return;
    }
    let started = null;
    const frame = (now) => {
      started ??= now;
      const share = Math.min(1, (now - started) / (SECONDS * 1e3));
      this.#show(share);
      if (share < 1) this.timer = requestAnimationFrame(frame);
      else this.stop();
    };
    this.timer = requestAnimationFrame(frame);
    this.#button("❚❚", "Pause");
  }

  stop() {
    cancelAnimationFrame(this.timer);
    this.timer = 0;
    this.#button("▶", "Play");
  }

  /** Show a time only in the slider. */
  tell(t) {
    $("time").value = t;
    $("time-value").textContent = t.toFixed(2);
    $("time").setAttribute("aria-valuetext", `t = ${t.toFixed(2)}`);
  }

  #button(sign, name) {
    $("play").textContent = sign;
    $("play").setAttribute("aria-label", name);
  }

  #show(t) {
    this.tell(t);
    this.paint(t);
  }
}

/**
 * Let the samples of a run move as they arrive, never faster than the eye can follow.
 * @param {import("./drawing.js").Run} run the run to move; its `t` is changed
 * @param paint called whenever it has moved
 * @param {AbortSignal} signal ends it
 * @returns {Promise<void>} resolved when the samples have reached their ends
 */
export function glide(run, paint, signal) {
  return new Promise((resolve) => {
    let before = null;
    let page = run.page;
    let painted = null; // the time that was painted last
    let rested = 0; // when it may be painted again
    const frame = (now) => {
      if (signal.aborted) return resolve();
      if (run.page !== page && run.page) [page, run.t] = [run.page, 0];
      const reached = run.page ? (run.page.frames.at(-1)?.t ?? 0) : 1;
      const step = before === null ? 0 : (now - before) / (GLIDE * 1e3);
      before = now;
      run.t = still() ? reached : Math.min(reached, (run.t ?? 0) + step);
      const moves = run.frames.length > 0 && run.pages.length === 1; // a later page moves on its own and then stays
      const arrived = run.ended && (run.t >= 1 || !moves);
      if (arrived) run.t = null;
      if (arrived || (run.t !== painted && now >= rested)) {
        paint(run);
        painted = run.t;
        rested = now + (REST + 1) * (performance.now() - now);
      }
      if (arrived) resolve();
      else if (document.hidden) setTimeout(() => frame(performance.now()), 100); // a hidden page gets no animation frames
      else requestAnimationFrame(frame);
    };
    frame(performance.now());
  });
}
