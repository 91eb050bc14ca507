// What the layout depends on, before the first paint: how many solvers are compared, and whether the page introduces itself.
{
  const root = document.documentElement;
  root.dataset.runs = /[#&]b[.=]/.test(location.hash) ? "2" : "1";
  if (/[#&]layout=over(&|$)/.test(location.hash)) root.dataset.layout = "over";
  try {
    if (localStorage.getItem("pathline-introduced") === null) root.dataset.intro = "";
  } catch {
    // storage is closed to this page: the introduction would come back every time
  }
}
