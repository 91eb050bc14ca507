// Dark or light, set before the first paint: the last choice made here, else the system's preference.
const THEMES = ["auto", "light", "dark"];

function chosenTheme() {
  try {
    const stored = localStorage.getItem("pathline-theme");
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto"; // this page has no access to storage
  }
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

applyTheme(chosenTheme());

addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const show = () => (button.textContent = `Theme: ${chosenTheme()}`);
  show();
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
    try {
      localStorage.setItem("pathline-theme", next);
    } catch {
      return;
    }
    applyTheme(next);
    show();
    dispatchEvent(new Event("themechange"));
  });
});
