// Set before the first paint, as the layout depends on it: the number of solvers compared, and whether to show the introduction.
{
  const root = document.documentElement;
  root.dataset.runs = /[#&]b[.=]/.test(location.hash) ? "2" : "1";
  if (/[#&]layout=over(&|$)/.test(location.hash)) root.dataset.layout = "over";
  try {
    if (localStorage.getItem("pathline-introduced") === null) root.dataset.intro = "";
  } catch {
    // this page has no access to storage: the introduction would come back every time
  }
}
