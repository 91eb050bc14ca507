"""Figures: one style for all, each written as PNG and SVG."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.errors import TrainingError
from training.folders import make_writable

COLOURS = {
    "euler": "#d1495b",
    "midpoint": "#edae49",
    "rk4": "#00798c",
    "dopri5": "#30638e",
    "heun2": "#8d6a9f",
    "ralston2": "#b08968",
    "bosh3": "#6a994e",
    "rk4_38": "#56cfe1",
    "tsit5": "#003d5b",
    "ab2": "#ff9f1c",
    "ab3": "#9c6644",
    "ab4": "#5c4742",
}
"""One colour per solver, the same in every figure."""

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "pathline",
}


class Figures:
    """Writes the figures of a report.

    Attributes:
        written: names of the figures so far, without suffixes.
    """

    def __init__(self, folder: Path, dpi: int = 100) -> None:
        self._folder = folder
        self._dpi = dpi
        self.written: list[str] = []

    @staticmethod
    def style() -> AbstractContextManager[None]:
        """Context with the style for drawing and saving figures."""
        return mpl.rc_context(_STYLE)

    def panels(self, rows: int, columns: int, width: float = 3.4, height: float = 2.8) -> tuple[Figure, list[Axes]]:
        """Make a figure of rows x columns panels, each of this width and height in inches; panels in reading order."""
        figure, axes = plt.subplots(
            rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
        )
        return figure, [axis for row in axes for axis in row]

    def save(self, figure: Figure, name: str) -> None:
        """Write a figure and close it.

        Raises:
            TrainingError: it cannot be written.
        """
        make_writable(self._folder, "figure folder")
        try:
            figure.savefig(self._folder / f"{name}.png", dpi=self._dpi, metadata={"Software": None})
            figure.savefig(self._folder / f"{name}.svg", dpi=self._dpi, metadata={"Date": None})
        except OSError as error:
            raise TrainingError(f"figure {self._folder / name} cannot be written: {error.strerror}") from None
        finally:
            plt.close(figure)
        self.written.append(name)
