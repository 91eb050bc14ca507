"""Figures of work against precision."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from studies.solvers.others import METHODS
from studies.solvers.precision import Curve

STYLE = {
    "pathline": ("tab:red", "o"),
    "scipy": ("tab:blue", "s"),
    "torchdiffeq": ("tab:green", "^"),
    "torchode": ("tab:purple", "v"),
}


def draw(
    found: list[Curve], against: str, path: Path, methods: tuple[str, ...] = tuple(METHODS), dpi: int = 80
) -> None:
    """Draw one panel per problem and method: `nfe` or `seconds` against error."""
    problems = list(dict.fromkeys(c.problem for c in found))
    columns = 5 if len(methods) == 1 else len(methods)
    count = len(problems) * len(methods)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.9 * columns, 2.3 * rows), squeeze=False, layout="constrained")
    for panel, (problem, method) in enumerate((p, m) for p in problems for m in methods):
        axis = axes.flat[panel]
        for c in found:
            if (c.problem, c.method) == (problem, method):
                colour, marker = STYLE[c.library]
                axis.loglog(c.error, getattr(c, against), color=colour, marker=marker, ms=3, lw=1, label=c.library)
        axis.set_title(f"{problem}, {method}", fontsize=8)
        axis.tick_params(labelsize=6, which="both")
        axis.invert_xaxis()
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=6)
    figure.supxlabel("error at the end", fontsize=8)
    figure.supylabel("NFE" if against == "nfe" else "CPU seconds", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
