"""Samples as a picture: points in the plane as a scatter plot, pictures as a sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathline import _png

SIDE = 480
"""Width and height of a scatter plot in pixels."""
MOST_PIXELS = 1 << 24
"""The most pixels of a sheet."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 32  # margins of the frame in pixels
_GAP = 2  # pixels between the pictures of a sheet
_WISHED = 56  # pixels that a small picture is enlarged to, about
_PAPER, _GRID, _FRAME, _INK = 255, 232, 190, 90
_POINT = np.array([37.0, 99.0, 235.0])


def layout(shape: Sequence[int]) -> tuple[int, int, int] | None:
    """Return height, width and channels of one picture; None where samples of this shape are no pictures.

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
    """Return why so many samples of this shape cannot be drawn and what to do, or nothing where they can."""
    if tuple(shape) == (2,):
        return ""
    found = layout(shape)
    if found is None:
        return (
            f"samples of shape {tuple(shape)} cannot be drawn: points in the plane have (2,), "
            "pictures (height, width), with 1 or 3 channels first or last; use .npz, .npy or .csv"
        )
    most = MOST_PIXELS // ((found[0] + _GAP) * (found[1] + _GAP))
    return f"{count} pictures do not fit on one sheet; ask for at most {most}" if count > most else ""


def draw(samples: np.ndarray) -> bytes:
    """Draw samples (n, *shape) as a PNG; those that are not finite are left out (points) or grey (pictures).

    Raises:
        ValueError: There are none, or they cannot be drawn; see `refusal`.
    """
    why = refusal(len(samples), samples.shape[1:]) if len(samples) else "there are no samples to draw"
    if why:
        raise ValueError(why)
    return _png.encode(_scatter(samples) if samples.shape[1:] == (2,) else _sheet(samples))


def _sheet(samples: np.ndarray) -> np.ndarray:
    height, width, channels = layout(samples.shape[1:]) or (0, 0, 0)
    if channels == 3 and samples.shape[1] == 3:
        samples = np.moveaxis(samples, 1, -1)
    pictures = samples.reshape(len(samples), height, width, channels).astype(np.float64)
    fine = np.asarray(np.isfinite(pictures.reshape(len(samples), -1)).all(1))
    low, high = np.percentile(pictures[fine], (0.5, 99.5)) if fine.any() else (0.0, 1.0)
    shades = np.clip((np.where(fine[:, None, None, None], pictures, 0) - low) / max(high - low, 1e-300), 0, 1) * 255
    shades[~fine] = 160
    columns = min(len(samples), math.ceil(math.sqrt(len(samples) * height / width)))
    rows = -(-len(samples) // columns)
    scale = min(max(1, round(_WISHED / max(height, width))), max(1, 960 // (max(columns, rows) * max(height, width))))
    tiles = np.full((rows * columns, height * scale + _GAP, width * scale + _GAP, channels), 236, np.uint8)
    tiles[: len(samples), _GAP:, _GAP:] = np.round(shades).astype(np.uint8).repeat(scale, 1).repeat(scale, 2)
    sheet = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
    sheet = sheet.reshape(rows * tiles.shape[1], columns * tiles.shape[2], channels)
    return sheet[:, :, 0] if channels == 1 else sheet


def _scatter(points: np.ndarray) -> np.ndarray:
    finite = points[np.isfinite(points).all(1)].astype(np.float64)
    finite = finite[np.abs(finite).max(1, initial=0) < 1e30]  # so that widths do not overflow
    low, high = _range(finite)
    half = 0.54 * float((high - low).max()) or max(1.0, float(np.abs(high).max()))
    centre = (low + high) / 2
    pixels = np.full((SIDE, SIDE, 3), float(_PAPER))
    corner = _LEFT, SIDE - _BOTTOM
    size = np.array([SIDE - _LEFT - _RIGHT, SIDE - _TOP - _BOTTOM])
    for axis in (0, 1):
        _ticks(pixels, axis, centre[axis] - half, centre[axis] + half, size[axis])
    inside = pixels[_TOP : corner[1], _LEFT : SIDE - _RIGHT]
    place = np.clip((finite - (centre - half)) / (2 * half) * (size - 1), -SIDE, 2 * SIDE)
    _dots(inside, np.round(np.stack([size[1] - 1 - place[:, 1], place[:, 0]], 1)).astype(np.int64))
    pixels[[_TOP, corner[1]], _LEFT : SIDE - _RIGHT] = pixels[_TOP : corner[1], [_LEFT, SIDE - _RIGHT - 1]] = _FRAME
    return np.round(pixels).astype(np.uint8)


def _range(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower left and upper right corner of what is shown: all, but for points that are very far off."""
    if not len(points):
        return np.full(2, -1.0), np.full(2, 1.0)
    low, high = np.percentile(points, (5, 95), axis=0)
    reach = np.where(high > low, 3 * (high - low), np.inf)
    return np.maximum(points.min(0), low - reach), np.minimum(points.max(0), high + reach)


def _dots(pixels: np.ndarray, places: np.ndarray) -> None:
    """Mix a disc for each place into the pixels; where many lie over each other it is darker."""
    radius = float(np.clip(5.5 - math.log10(max(1, len(places))), 1, 3.5))
    covered = np.zeros(pixels.shape[:2], np.int64)
    reach = np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    for offset in ((dy, dx) for dy in reach for dx in reach if dy * dy + dx * dx <= radius * radius):
        row, column = (places + offset).T
        seen = (row >= 0) & (row < pixels.shape[0]) & (column >= 0) & (column < pixels.shape[1])
        np.add.at(covered, (row[seen], column[seen]), 1)
    alone = float(np.clip(9 / max(1.0, len(places)) ** 0.5, 0.1, 0.7))  # how dark one disc is
    cover = (1 - (1 - alone) ** covered)[:, :, None]
    colour = _POINT * (1 - 0.6 * np.clip(2 * cover - 1, 0, 1))  # from half covered on, blue turns to navy
    pixels += (colour - pixels) * cover


def _ticks(pixels: np.ndarray, axis: int, low: float, high: float, size: int) -> None:
    """Draw grid lines at round numbers, with the numbers beside the frame; axis 0 runs right, 1 runs up."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        at = round((k * step - low) / (high - low) * (size - 1))
        mask = _png.text(f"{k * step:.5g}")
        height, width = mask.shape
        if axis == 0:
            pixels[_TOP : SIDE - _BOTTOM, _LEFT + at] = _GRID
            top, left = SIDE - _BOTTOM + 8, min(_LEFT + at - width // 2, SIDE - width)
        else:
            pixels[SIDE - _BOTTOM - 1 - at, _LEFT : SIDE - _RIGHT] = _GRID
            top, left = SIDE - _BOTTOM - 1 - at - height // 2, max(0, _LEFT - 6 - width)
        width = min(width, SIDE - left)
        pixels[top : top + height, left : left + width][mask[:, :width]] = _INK
