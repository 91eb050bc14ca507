"""Figures for notebooks, drawn by matplotlib, which is optional, as are pandas and torch."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pathline._picture import draw_sheet, layout, needed, scatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pathline._compare import ComparisonRow
    from pathline._frontier import FrontierPoint

_CURVES = 32  # most samples for which steps are drawn
_DPI = 300  # of a figure that is written to a file


def samples(array: np.ndarray, ax: Axes | None, title: str) -> Axes:
    """Draw points (n, 2) as a scatter plot, pictures as a sheet, numbers (n,) or (n, 1) as a histogram.

    Raises:
        ValueError: Samples of this shape cannot be drawn.
    """
    ax, shape = _axes(ax), array.shape[1:]
    if shape == (2,):
        scatter(ax, array)
    elif layout(shape):
        sheet = draw_sheet(array)
        ax.imshow(sheet, cmap="gray" if sheet.ndim == 2 else None, vmin=0, vmax=255)
        ax.set_axis_off()
    elif shape in ((), (1,)):
        ax.hist(array[np.isfinite(array)], bins="auto")
    else:
        raise ValueError(f"samples of shape {shape} cannot be drawn; to_dataframe() and save() have all the numbers")
    ax.set_title(title)
    return ax


def steps(sample: np.ndarray, t: np.ndarray, h: np.ndarray, accepted: np.ndarray, ax: Axes | None) -> Axes:
    """Draw the size of each attempted step over the time at which it began; all arrays have one entry per step.

    Raises:
        ValueError: There are no steps.
    """
    if not len(sample):
        raise ValueError("the trace has no steps; ask for them with trace='summary' or 'full'")
    ax, rows = _axes(ax), np.unique(sample)[:_CURVES]
    for row in rows:
        here = (sample == row) & accepted
        ax.plot(t[here], np.abs(h[here]), ".-", linewidth=1, markersize=4, alpha=0.7)
    rejected = ~accepted & np.isin(sample, rows)
    if rejected.any():
        ax.plot(t[rejected], np.abs(h[rejected]), "x", color="tab:red", markersize=5, label="rejected")
        ax.legend()
    ax.set(xlabel="t", ylabel="step size h", yscale="log")
    return ax


def curves(t: np.ndarray, values: np.ndarray, ax: Axes | None, name: str, title: str) -> Axes:
    """Draw one curve over t for each sample, values (n, m)."""
    ax = _axes(ax)
    ax.plot(t, values.T, linewidth=1, alpha=0.7)
    ax.set(xlabel="t", ylabel=name, title=title)
    return ax


def frontier(curves: Mapping[str, Sequence[FrontierPoint | ComparisonRow]], ax: Axes | None, title: str) -> Axes:
    """Draw the error of each measured solver over its NFE, the best of each curve joined by a line.

    Args:
        curves: The points of each curve by its label.
        ax: Where to draw; by default a new figure.
        title: Of the figure.
    """
    ax = _axes(ax)
    for label, points in curves.items():
        best, others = ([(p.nfe_most, 100 * p.p95_high) for p in points if p.best is kind] for kind in (True, False))
        (line,) = ax.plot(*zip(*best, strict=True), "o-", linewidth=1, markersize=4, label=label) if best else (None,)
        if others:
            ax.plot(*zip(*others, strict=True), ".", color=line and line.get_color(), markersize=3, alpha=0.4)
    ax.set(xscale="log", yscale="log", xlabel="NFE", ylabel="95 % of samples end within, % of spread", title=title)
    if len(curves) > 1:
        ax.legend()
    return ax


def png(plot: Callable[[Axes], Axes]) -> bytes:
    """Return what `plot` draws as a PNG of 1,920 x 1,440 pixels, 16 cm wide at 300 dpi."""
    figure = needed("matplotlib.figure", "save").Figure(figsize=(6.4, 4.8), layout="constrained")
    plot(figure.add_subplot())
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI)
    return content.getvalue()


def _axes(ax: Axes | None) -> Axes:
    return needed("matplotlib.pyplot", "plot").subplots()[1] if ax is None else ax
