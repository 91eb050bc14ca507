"""Figures and pictures of results, drawn by matplotlib, which is optional, as are pandas and torch."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pathline._frontier import FrontierPoint

SIDE = 480
"""Width and height of a scatter plot in pixels, at scale 1."""
MAX_PIXELS = 1 << 24
"""The most pixels of a sheet."""

_GAP = 2  # pixels between the pictures of a sheet
_WISHED = 56  # approximate pixels to which a small picture is enlarged
_CURVES = 32  # most samples for which steps are drawn


def needed(package: str, call: str) -> Any:
    """Return an optional package.

    Raises:
        ImportError: It is not installed; the message says which call needs it and how to install it.
    """
    whole = package.partition(".")[0]
    try:
        import_module(whole)
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
        raise ImportError(
            f"{call}() needs {error.name}, which is not installed; run: pip install {error.name}"
        ) from None


def layout(shape: Sequence[int]) -> tuple[int, int, int] | None:
    """Return height, width and channels of one picture; None if samples of this shape are not pictures.

    Args:
        shape: Of one sample: (h, w), or with 1 or 3 channels before or after.
    """
    match tuple(shape):
        case (height, width) | (1, height, width) | (height, width, 1) if min(height, width) > 1:
            return height, width, 1
        case (3, height, width) | (height, width, 3) if min(height, width) > 1:
            return height, width, 3
    return None


def refusal(count: int, shape: Sequence[int]) -> str:
    """Return why samples of this shape or number cannot be drawn, and what to do; empty if they can be."""
    if tuple(shape) == (2,):
        return ""
    picture = layout(shape)
    if picture is None:
        return (
            f"samples of shape {tuple(shape)} cannot be drawn: points in the plane have (2,), "
            "pictures (height, width), with 1 or 3 channels first or last; use .npz, .npy or .csv"
        )
    most = MAX_PIXELS // ((picture[0] + _GAP) * (picture[1] + _GAP))
    return f"{count} pictures do not fit on one sheet; ask for at most {most}" if count > most else ""


def draw(samples: np.ndarray, scale: int = 1) -> bytes:
    """Draw samples (n, *shape) as a PNG; non-finite ones are left out (points) or grey (pictures).

    Args:
        samples: Points (n, 2) or pictures.
        scale: Size: 1 for a screen, 3 for print (a scatter plot of 1440 pixels, 12 cm at 300 dpi).

    Raises:
        ValueError: There are none, or they cannot be drawn; see `refusal`.
        ImportError: matplotlib is not installed.
    """
    why = refusal(len(samples), samples.shape[1:]) if len(samples) else "there are no samples to draw"
    if why:
        raise ValueError(why)
    if samples.shape[1:] == (2,):
        return png(lambda ax: scatter(ax, samples), (SIDE / 100, SIDE / 100), 100 * scale)
    sheet, content = draw_sheet(samples, scale), io.BytesIO()
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if sheet.ndim == 2 else {}
    needed("matplotlib.image", "picture").imsave(content, sheet, format="png", dpi=100 * scale, **grey)
    return content.getvalue()


def png(plot: Callable[[Axes], Any], inches: tuple[float, float] = (6.4, 4.8), dpi: int = 300) -> bytes:
    """Return what `plot` draws as a PNG, by default of 1,920 x 1,440 pixels, 16 cm wide at 300 dpi."""
    figure = needed("matplotlib.figure", "picture").Figure(figsize=inches, layout="constrained")
    plot(figure.add_subplot())
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


def scatter(ax: Any, points: np.ndarray) -> None:
    """Draw points (n, 2) that are finite into axes; extreme outliers do not squeeze the others."""
    finite = points[np.isfinite(points).all(1)].astype(np.float64)
    finite = finite[np.abs(finite).max(1, initial=0) < 1e30]  # so that widths do not overflow
    low, high = _range(finite)
    half = 0.54 * float((high - low).max()) or max(1.0, float(np.abs(high).max()))
    x, y = (low + high) / 2
    size, alpha = np.clip(4000 / max(1, len(finite)), 2, 16), np.clip(9 / max(1, len(finite)) ** 0.5, 0.1, 0.7)
    ax.scatter(finite[:, 0], finite[:, 1], s=float(size), alpha=float(alpha), linewidths=0)
    ax.set(xlim=(x - half, x + half), ylim=(y - half, y + half), aspect="equal")
    ax.grid(linewidth=0.5, alpha=0.5)
    ax.set_axisbelow(True)


def draw_sheet(samples: np.ndarray, scale: int = 1) -> np.ndarray:
    """Return pictures (n, *shape) side by side, as grey or RGB pixels, uint8."""
    height, width, channels = layout(samples.shape[1:]) or (0, 0, 0)
    if channels == 3 and samples.shape[1] == 3:
        samples = np.moveaxis(samples, 1, -1)
    pictures = samples.reshape(len(samples), height, width, channels).astype(np.float64)
    finite = np.asarray(np.isfinite(pictures.reshape(len(samples), -1)).all(1))
    low, high = np.percentile(pictures[finite], (0.5, 99.5)) if finite.any() else (0.0, 1.0)
    shades = np.clip((np.where(finite[:, None, None, None], pictures, 0) - low) / max(high - low, 1e-300), 0, 1) * 255
    shades[~finite] = 160
    columns = min(len(samples), math.ceil(math.sqrt(len(samples) * height / width)))
    rows = -(-len(samples) // columns)
    longest = max(height, width)
    zoom = min(max(1, round(_WISHED * scale / longest)), max(1, 960 * scale // (max(columns, rows) * longest)))
    gap = _GAP * min(scale, zoom)
    tiles = np.full((rows * columns, height * zoom + gap, width * zoom + gap, channels), 236, np.uint8)
    tiles[: len(samples), gap:, gap:] = np.round(shades).astype(np.uint8).repeat(zoom, 1).repeat(zoom, 2)
    sheet = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
    sheet = sheet.reshape(rows * tiles.shape[1], columns * tiles.shape[2], channels)
    return sheet[:, :, 0] if channels == 1 else sheet


def _range(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower left and upper right corner of the plot, which leaves out extreme outliers."""
    if not len(points):
        return np.full(2, -1.0), np.full(2, 1.0)
    low, high = np.percentile(points, (5, 95), axis=0)
    reach = np.where(high > low, 3 * (high - low), np.inf)
    return np.maximum(points.min(0), low - reach), np.minimum(points.max(0), high + reach)


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
        shown = (sample == row) & accepted
        ax.plot(t[shown], np.abs(h[shown]), ".-", linewidth=1, markersize=4, alpha=0.7)
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


def frontier(curves: Mapping[str, Sequence[FrontierPoint]], ax: Axes | None, title: str) -> Axes:
    """Draw the error of each measured solver over its NFE, the best of each curve joined by a line.

    Args:
        curves: The points of each curve by its label.
        ax: Where to draw; by default a new figure.
        title: Of the figure.
    """
    ax = _axes(ax)
    for label, points in curves.items():
        best, beaten = ([(p.nfe_most, 100 * p.p95_high) for p in points if p.best is kind] for kind in (True, False))
        (line,) = ax.plot(*zip(*best, strict=True), "o-", linewidth=1, markersize=4, label=label) if best else (None,)
        if beaten:
            ax.plot(*zip(*beaten, strict=True), ".", color=line and line.get_color(), markersize=3, alpha=0.4)
    ax.set(xscale="log", yscale="log", xlabel="NFE", ylabel="95 % of samples end within, % of spread", title=title)
    if len(curves) > 1:
        ax.legend()
    return ax


def _axes(ax: Axes | None) -> Axes:
    return needed("matplotlib.pyplot", "plot").subplots()[1] if ax is None else ax
