"""Pictures of samples as PNG files, made with NumPy and zlib alone: a scatter plot, or a sheet of pictures."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

SIDE = 480
"""Width and height of a scatter plot in pixels, at scale 1."""
MAX_PIXELS = 1 << 24
"""The most pixels of a sheet."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 32  # margins of the frame in pixels
_GAP = 2  # pixels between the pictures of a sheet
_WISHED = 56  # approximate pixels to which a small picture is enlarged
_PAPER, _GRID, _FRAME, _INK = 255, 232, 190, 90
_POINT = np.array([37.0, 99.0, 235.0])


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
    found = layout(shape)
    if found is None:
        return (
            f"samples of shape {tuple(shape)} cannot be drawn: points in the plane have (2,), "
            "pictures (height, width), with 1 or 3 channels first or last; use .npz, .npy or .csv"
        )
    most = MAX_PIXELS // ((found[0] + _GAP) * (found[1] + _GAP))
    return f"{count} pictures do not fit on one sheet; ask for at most {most}" if count > most else ""


def draw(samples: np.ndarray, scale: int = 1) -> bytes:
    """Draw samples (n, *shape) as a PNG; non-finite ones are left out (points) or grey (pictures).

    Args:
        samples: Points (n, 2) or pictures.
        scale: Size: 1 for a screen, 3 for print (a scatter plot of 1440 pixels, 12 cm at 300 dpi).

    Raises:
        ValueError: There are none, or they cannot be drawn; see `refusal`.
    """
    why = refusal(len(samples), samples.shape[1:]) if len(samples) else "there are no samples to draw"
    if why:
        raise ValueError(why)
    return _encode(_scatter(samples, scale) if samples.shape[1:] == (2,) else draw_sheet(samples, scale), scale)


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


def _scatter(points: np.ndarray, scale: int) -> np.ndarray:
    finite = points[np.isfinite(points).all(1)].astype(np.float64)
    finite = finite[np.abs(finite).max(1, initial=0) < 1e30]  # so that widths do not overflow
    low, high = _range(finite)
    half = 0.54 * float((high - low).max()) or max(1.0, float(np.abs(high).max()))
    centre = (low + high) / 2
    side = SIDE * scale
    pixels = np.full((side, side, 3), float(_PAPER))
    left, right, top, bottom = (scale * margin for margin in (_LEFT, _RIGHT, _TOP, _BOTTOM))
    size = np.array([side - left - right, side - top - bottom])
    for axis in (0, 1):
        _ticks(pixels, axis, centre[axis] - half, centre[axis] + half, size[axis], scale)
    inside = pixels[top : side - bottom, left : side - right]
    place = np.clip((finite - (centre - half)) / (2 * half) * (size - 1), -side, 2 * side)
    _dots(inside, np.round(np.stack([size[1] - 1 - place[:, 1], place[:, 0]], 1)).astype(np.int64), scale)
    for line in range(scale):
        pixels[[top + line, side - bottom - line], left : side - right] = _FRAME
        pixels[top : side - bottom, [left + line, side - right - 1 - line]] = _FRAME
    return np.round(pixels).astype(np.uint8)


def _range(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower left and upper right corner of the plot, which leaves out extreme outliers."""
    if not len(points):
        return np.full(2, -1.0), np.full(2, 1.0)
    low, high = np.percentile(points, (5, 95), axis=0)
    reach = np.where(high > low, 3 * (high - low), np.inf)
    return np.maximum(points.min(0), low - reach), np.minimum(points.max(0), high + reach)


def _dots(pixels: np.ndarray, places: np.ndarray, scale: int) -> None:
    """Blend a disc for each point into the pixels; overlaps are darker."""
    radius = scale * float(np.clip(5.5 - math.log10(max(1, len(places))), 1, 3.5))
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


def _ticks(pixels: np.ndarray, axis: int, low: float, high: float, size: int, scale: int) -> None:
    """Draw grid lines at round numbers, with the numbers beside the frame; axis 0 runs right, 1 runs up."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    side = SIDE * scale
    left, right, top, bottom = (scale * margin for margin in (_LEFT, _RIGHT, _TOP, _BOTTOM))
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        at = round((k * step - low) / (high - low) * (size - 1))
        mask = _text(f"{k * step:.5g}", 2 * scale)
        height, width = mask.shape
        if axis == 0:
            pixels[top : side - bottom, left + at : left + at + scale] = _GRID
            row, column = side - bottom + 8 * scale, min(left + at - width // 2, side - width)
        else:
            pixels[side - bottom - scale - at : side - bottom - at, left : side - right] = _GRID
            row, column = side - bottom - 1 - at - height // 2, max(0, left - 6 * scale - width)
        width = min(width, side - column)
        pixels[row : row + height, column : column + width][mask[:, :width]] = _INK


_ROWS = {  # five rows of three pixels each, one octal digit per row
    "0123456789": "75557 26227 71747 71717 55711 74717 74757 71222 75757 75717",
    "-.e+": "00700 00002 07567 02720",
}
_GLYPHS = {name: rows for names, all_rows in _ROWS.items() for name, rows in zip(names, all_rows.split(), strict=True)}


def _encode(pixels: np.ndarray, scale: int) -> bytes:
    """Return the PNG of grey (height, width) or RGB (height, width, 3) pixels, uint8, at 100 dpi times the scale.

    The same pixels give the same bytes with one build of zlib. Source: PNG specification, third edition, 2025.
    """
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else 2
    rows = np.zeros((height, 1 + width * (1 if kind == 0 else 3)), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    density = struct.pack(">IIB", *[round(100 * scale / 0.0254)] * 2, 1)  # pixels per metre
    body = zlib.compress(rows.tobytes(), 6)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"pHYs", density)
        + _chunk(b"IDAT", body)
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _text(characters: str, scale: int) -> np.ndarray:
    """Return a mask (height, width) of a number's characters; others are left blank."""
    columns = [_glyph(character) for character in characters]
    return np.concatenate(columns, axis=1).repeat(scale, 0).repeat(scale, 1)


def _glyph(character: str) -> np.ndarray:
    rows = [int(digit) for digit in _GLYPHS.get(character, "00000")]
    return np.array([[row >> shift & 1 for shift in (2, 1, 0)] + [0] for row in rows], dtype=bool)
