// The panel with the current request for a shell and for Python, and the buttons that copy.
import * as snippets from "./snippets.js";

const $ = (id) => document.getElementById(id);
let bodies = [];

/** Show the requests of a view: one body per setting. */
export function show(those = bodies) {
  bodies = those;
  const python = $("tab-python").getAttribute("aria-selected") === "true";
  $("code").textContent = python ? snippets.python(bodies) : snippets.curl(bodies);
}

export function listen() {
  const tabs = [$("tab-curl"), $("tab-python")];
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tabs, tab));
    tab.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = tabs.find((one) => one !== tab);
      select(tabs, other);
      other.focus();
    });
  }
  $("copy-code").addEventListener("click", (event) => copy($("code").textContent, event.target));
  $("copy-link").addEventListener("click", (event) => copy(location.href, event.target));
}

function select(tabs, chosen) {
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", String(tab === chosen));
    tab.tabIndex = tab === chosen ? 0 : -1;
  }
  $("code").setAttribute("aria-labelledby", chosen.id);
  show();
}

async function copy(text, button) {
  button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here: select and copy"; // browsers give the clipboard to https and localhost only
  }
  setTimeout(() => (button.textContent = button.dataset.label), 1500);
}
