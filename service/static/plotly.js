// Charts by Plotly.js, which is loaded when the first one is drawn, in the colours of the page.
import { colours } from "./canvas.js";

let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.plotly;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("The chart cannot be drawn: Plotly.js did not load. Is the plotly package installed?"));
    };
    document.head.append(script);
  });
  return loading;
}

/** Draw a chart into an element, and let it follow the element's width from then on. */
export async function chart(element, data, { height, xaxis, yaxis, ...rest }) {
  const plotly = await load();
  const paint = colours();
  const axis = { gridcolor: paint.line, linecolor: paint.line, zeroline: false, ticks: "" };
  const layout = {
    height,
    margin: { l: 58, r: 12, t: 30, b: 42 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", size: 12, color: paint.text },
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: "closest",
    autosize: true,
    ...rest,
  };
  await plotly.react(element, data, layout, { displayModeBar: false });
  if (element.follows) return;
  element.follows = new ResizeObserver(() => element.clientWidth && plotly.Plots.resize(element));
  element.follows.observe(element);
}
