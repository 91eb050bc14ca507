"""The figures of concepts.md: `python docs/images/concepts.py` draws them from the service at PATHLINE_URL.

It needs matplotlib and a service with the model `moons`. Points are thinned and rounded, so that the files stay small.
"""

import io
import re
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from pathline import Client

HERE = Path(__file__).parent
TIMES = [0.0, 0.3, 0.6, 0.8, 1.0]
SOLVERS = [f"{name}-{steps}" for name in ("euler", "midpoint", "rk4") for steps in (4, 8, 16, 32, 64)]
COLOURS = {"euler": "#b45309", "midpoint": "#0f766e", "rk4": "#4338ca", "dopri5": "#be185d"}
MARKERS = {"euler": "o", "midpoint": "s", "rk4": "^", "dopri5": "D"}


def save(figure: Figure, name: str) -> None:
    """Write a figure as SVG, with coordinates of one decimal."""
    content = io.StringIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    short = re.sub(r"(\d+\.\d)\d+", r"\1", content.getvalue())
    (HERE / name).write_text("\n".join(line.strip() for line in short.splitlines()) + "\n")


def flow(client: Client) -> None:
    """Draw the same 100 samples at five times, and the paths of six of them."""
    result = client.sample("moons", 100, seed=0, solver="rk4-50", save_at=np.linspace(0, 1, 51).tolist())
    if result.saved is None:
        raise RuntimeError("the service saved no states")
    figure, panels = plt.subplots(1, len(TIMES), figsize=(9, 2.1), sharex=True, sharey=True, layout="constrained")
    for panel, t in zip(panels, TIMES, strict=True):
        until = round(50 * t)
        panel.plot(*result.saved[:, until].T, ".", ms=3, mew=0, color="#0f766e")
        for path in result.saved[:6, : until + 1]:
            panel.plot(*path.T, color="#be185d", lw=0.9)
            panel.plot(*path[-1], ".", ms=5, mew=0, color="#be185d")
        panel.set_title({0.0: "t = 0: noise", 1.0: "t = 1: data"}.get(t, f"t = {t}"), fontsize=9)
        panel.set(xticks=[], yticks=[], xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), aspect="equal")
    save(figure, "flow.svg")


def cost(client: Client) -> None:
    """Draw the distance to the reference over the NFE."""
    adaptive = [f"dopri5@1e-{k}" for k in (2, 3, 4, 5)]
    table = client.compare("moons", [*SOLVERS, *adaptive], 256, seed=0, reference="dopri5@1e-7")
    figure, panel = plt.subplots(figsize=(5.4, 3.3), layout="constrained")
    for name, colour in COLOURS.items():
        rows = [row for row in table.rows if row.label.startswith(name)]
        x, y = [row.nfe_mean for row in rows], [row.relative or np.nan for row in rows]
        panel.plot(x, y, marker=MARKERS[name], color=colour, label=name, ms=5, lw=1.3)
    panel.axhline(0.01, color="#64748b", lw=0.8, ls=":")
    panel.annotate("1 % of the spread", (300, 0.0112), color="#475569", fontsize=8, ha="right")
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="network evaluations of a sample (NFE, mean)",
        ylabel="error, of the spread",
    )
    panel.set_xticks([4, 8, 16, 32, 64, 128, 256], ["4", "8", "16", "32", "64", "128", "256"])
    panel.set_xticks([], minor=True)
    panel.legend(frameon=False, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    save(figure, "error-against-cost.svg")


if __name__ == "__main__":
    matplotlib.rcParams.update({"svg.hashsalt": "pathline", "svg.fonttype": "none", "font.family": "sans-serif"})
    with Client() as connected:
        flow(connected)
        cost(connected)
