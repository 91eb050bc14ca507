// Moves through t: a slider, and a button that plays it.

const $ = (id) => document.getElementById(id);
const SECONDS = 3; // for the whole span

export class Player {
  /** @param paint called with the time to show, or null for the end */
  constructor(paint) {
    this.paint = paint;
    this.span = [0, 1];
    this.timer = 0;
    $("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    $("time").addEventListener("input", () => {
      this.stop();
      this.#show(Number($("time").value));
    });
  }

  /** Offer the times from `begin` to `end`, or hide. */
  open(begin, end) {
    this.stop();
    this.span = [begin, end];
    Object.assign($("time"), { min: begin, max: end, step: (end - begin) / 200 });
    $("player").hidden = false;
  }

  close() {
    this.stop();
    $("player").hidden = true;
  }

  /** Play from the beginning; at once to the end for those who asked their system for less motion. */
  play() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches && !this.touched) {
      this.touched = true; // a second press plays: then it is asked for
      this.#show(this.span[1]);
      return;
    }
    const [begin, end] = this.span;
    let started = null;
    const frame = (now) => {
      started ??= now;
      const share = Math.min(1, (now - started) / (SECONDS * 1e3));
      this.#show(begin + (end - begin) * share);
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

  #button(sign, name) {
    $("play").textContent = sign;
    $("play").setAttribute("aria-label", name);
  }

  #show(t) {
    $("time").value = t;
    $("time-value").textContent = t.toFixed(2);
    $("time").setAttribute("aria-valuetext", `t = ${t.toFixed(2)}`);
    this.paint(t);
  }
}
