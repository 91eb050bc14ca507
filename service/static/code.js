// The panel with the current request for curl, for Python and for the command line, and the buttons that copy.
import * as snippets from "./snippets.js";

const $ = (id) => document.getElementById(id);
let bodies = [];

/** Show the requests of a view: one body per setting. */
export function show(those = bodies) {
  bodies = those;
  const { id } = document.querySelector("#elsewhere [aria-selected=true]");
  $("code").textContent = snippets[id.slice("tab-".length)](bodies);
}

export function listen() {
  const tabs = [...document.querySelectorAll("#elsewhere [role=tab]")];
  for (const [k, tab] of tabs.entries()) {
    tab.addEventListener("click", () => select(tabs, tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: tabs.length - 1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const other = tabs[(k + step) % tabs.length];
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
