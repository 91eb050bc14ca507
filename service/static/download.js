// Downloads of the shown samples: arrays, a table, a picture, a notebook.
import * as api from "./api.js";
import { $, titled } from "./dom.js";
import * as snippets from "./snippets.js";

const NOTEBOOK = "application/x-ipynb+json";

/** @param runs returns the runs that are shown @param failed called with an error */
export function listen(runs, failed) {
  $("download").addEventListener("click", async (event) => {
    const kind = event.target.dataset?.download;
    if (!kind || !runs().length) return;
    $("download").open = false;
    try {
      await FORMATS[kind](runs());
    } catch (error) {
      failed(error);
    }
  });
  document.addEventListener("click", (event) => {
    if (!$("download").contains(event.target)) $("download").open = false;
  });
  $("download").addEventListener("keydown", (event) => {
    if (event.key === "Escape") $("download").open = false;
  });
}

const name = ({ body, label }, ending) => `${body.model}-${label.replace(/[^\w.@=-]+/g, "_")}-seed${body.seed}.${ending}`;

function save(content, file) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const FORMATS = {
  async npz(runs) {
    for (const run of runs) save(await api.file(run.body, "application/x-npz"), name(run, "npz"));
  },
  csv(runs) {
    for (const run of runs) save(new Blob([csv(run.response, run.shape)], { type: "text/csv" }), name(run, "csv"));
  },
  async png(runs) {
    for (const canvas of $("cards").querySelectorAll("canvas")) {
      const label = canvas.runs.map((run) => run.label).join("-");
      save(await new Promise((done) => canvas.toBlob(done)), name({ ...runs[0], label }, "png"));
    }
  },
  ipynb(runs) {
    save(new Blob([JSON.stringify(notebook(runs), null, 1)], { type: NOTEBOOK }), `${runs[0].body.model}.ipynb`);
  },
};

/** One row per sample, one column per number; a sample that is not finite is an empty row. */
function csv({ samples, columns }, shape) {
  const width = shape.reduce((product, size) => product * size, 1);
  const quoted = (name) => (/[",\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);
  const head = columns ? columns.map((column) => quoted(titled(column))) : shape.length === 1 && width === 2 ? ["x", "y"] : Array.from({ length: width }, (_, k) => `x${k}`);
  const written = (value, k) => (columns?.[k].decimals === undefined ? value : value.toFixed(columns[k].decimals));
  const rows = samples.map((sample) => (sample === null ? Array(width).fill("") : sample.flat(Infinity).map(written)).join(","));
  return `${[head.join(","), ...rows].join("\n")}\n`;
}

function notebook(runs) {
  const bodies = runs.map((run) => run.body);
  const markdown = (id, text) => ({ cell_type: "markdown", id, metadata: {}, source: lines(text) });
  const code = (id, text) => ({ cell_type: "code", id, metadata: {}, execution_count: null, outputs: [], source: lines(text) });
  const solvers = runs.map((run) => run.label).join(" and ");
  const needs = "It needs the SDK (`pip install ./clients/python`) and the service at that address.";
  const title = `# ${bodies[0].model}: ${solvers}\n\nThe samples of [this view](${location.href}). ${needs}`;
  const shown = bodies.length === 1 ? "result" : "a";
  return {
    cells: [markdown("about", title), code("draw", snippets.python(bodies).trimEnd()), code("show", `${shown}  # a picture of the samples`)],
    metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" }, language_info: { name: "python" } },
    nbformat: 4,
    nbformat_minor: 5,
  };
}

const lines = (text) => text.split("\n").map((line, k, all) => (k < all.length - 1 ? `${line}\n` : line));
