"""Sheets of pictures by class: a column for each class, a block of rows for each set of pictures."""

import io
from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

mpl.use("Agg")
from matplotlib.figure import Figure
from PIL import Image

Array = NDArray[np.floating]

MAX_CLASSES = 16
"""Columns of a sheet; further classes are left out."""

_INCHES = 0.36  # side of a picture


def draw(sets: Mapping[str, tuple[Array, NDArray[np.int64]]], classes: int, rows: int = 2) -> bytes:
    """Draw the first pictures of each class as a PNG.

    Args:
        sets: by title, pictures (n, height, width), or in colour (n, 3, height, width), from 0 to 1, and the class of
            each, (n,).
        classes: number of classes.
        rows: number of pictures per class in each set.
    """
    columns = min(classes, MAX_CLASSES)
    size = (_INCHES * columns + 0.1, len(sets) * (_INCHES * rows + 0.28))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(sets), 1, squeeze=False)[:, 0]
    for axes, (name, (pictures, labels)) in zip(panels, sets.items(), strict=True):
        axes.imshow(tiled(pictures, labels, columns, rows), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name, fontsize=8)
        axes.axis("off")
    drawn, file = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    colours = any(pictures.ndim == 4 for pictures, _ in sets.values())
    Image.open(drawn).convert("RGB" if colours else "L").save(file, "PNG", optimize=True)  # half the bytes of RGBA
    return file.getvalue()


def tiled(pictures: Array, labels: NDArray[np.int64], columns: int, rows: int) -> Array:
    """Tile pictures into one, (rows * height, columns * width), colours on a last axis of three; empty places are 0."""
    whole = np.zeros((rows, columns, *pictures.shape[1:]), dtype=np.float64)
    for label in range(columns):
        own = pictures[labels == label][:rows]
        whole[: len(own), label] = own
    if pictures.ndim == 4:
        return (
            np.moveaxis(whole, 2, -1)
            .transpose(0, 2, 1, 3, 4)
            .reshape(rows * pictures.shape[2], columns * pictures.shape[3], 3)
        )
    return whole.transpose(0, 2, 1, 3).reshape(rows * pictures.shape[1], columns * pictures.shape[2])
