"""A scatter plot of points in the plane, where many points in one place are darker than one."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE = 640
"""Width and height of the picture in pixels."""

_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 20, 20, 40  # margins of the frame in pixels
_FINER = 2  # dots are drawn this much larger and then reduced, which smooths their edges
_SPREAD = 3  # times the range of nine points in ten: how far beyond it a point is still shown
_GRID, _FRAME, _INK = (232, 235, 240), (190, 196, 206), (74, 84, 99)
_COLOURS = np.array([[120, 169, 245], [120, 169, 245], [37, 99, 235], [20, 46, 120]], dtype=np.float64)
_PLACES = np.linspace(0, len(_COLOURS) - 1, 256)
_PALETTE = np.stack([np.interp(_PLACES, range(len(_COLOURS)), _COLOURS[:, c]) for c in range(3)], -1).astype(np.float32)
"""The colour from no point to many; the first third is one colour, which `_COVER` fades in."""
_COVER = np.minimum(1, _PLACES).astype(np.float32)

Box = tuple[float, float, float, float]


def scatter(points: NDArray[np.generic]) -> Image.Image:
    """Draw points (n, 2) on axes of one scale; a line says how many are not shown, being far off or not finite."""
    xy = points.astype(np.float64)
    near = xy[np.isfinite(xy).all(1)]
    near = near[np.abs(near).max(1) < 1e30]  # so that widths do not overflow
    box = _box(near)
    inside = near[(near[:, 0] >= box[0]) & (near[:, 0] <= box[1]) & (near[:, 1] >= box[2]) & (near[:, 1] <= box[3])]
    image = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    _axes(draw, box)
    _dots(image, inside, box)
    draw.rectangle((_LEFT, _TOP, SIDE - _RIGHT, SIDE - _BOTTOM), outline=_FRAME)
    if len(inside) < len(xy):
        text = f"{len(xy) - len(inside)} of {len(xy)} samples not shown: not finite, or far away"
        draw.text((SIDE - _RIGHT, 4), text, _INK, _font(12), "ra")
    return image


def _box(points: NDArray[np.float64]) -> Box:
    """Return the part of the plane that is shown, as wide as high."""
    if not len(points):
        return (-1.0, 1.0, -1.0, 1.0)
    low, high = np.percentile(points, (5, 95), axis=0)
    reach = np.where(high > low, (high - low) * _SPREAD, np.inf)
    low, high = np.maximum(points.min(0), low - reach), np.minimum(points.max(0), high + reach)
    size = float(np.abs([low, high]).max())
    half = max(0.54 * float((high - low).max()), 1e-11 * size)  # below, float64 has no round numbers between
    if not (high > low).any():
        half = size or 1.0
    (x, y) = (low + high) / 2
    return (x - half, x + half, y - half, y + half)


def _dots(image: Image.Image, points: NDArray[np.float64], box: Box) -> None:
    """Add a disc for each point; the colour at a place follows from how many discs cover it."""
    inner = SIDE - _LEFT - _RIGHT, SIDE - _TOP - _BOTTOM
    width, height = inner[0] * _FINER, inner[1] * _FINER
    radius = _FINER * float(np.clip(7 - 1.2 * math.log10(max(1, len(points))), 1.2, 5))
    x = np.round((points[:, 0] - box[0]) / (box[1] - box[0]) * (width - 1)).astype(np.int64)
    y = np.round((box[3] - points[:, 1]) / (box[3] - box[2]) * (height - 1)).astype(np.int64)
    covered = np.zeros(width * height, dtype=np.int64)
    reach = np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    for dx, dy in ((dx, dy) for dx in reach for dy in reach if dx * dx + dy * dy <= radius * radius):
        column, row = x + dx, y + dy
        seen = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        np.add.at(covered, row[seen] * width + column[seen], 1)
    alone = float(np.clip(6 / max(1.0, len(points)) ** 0.5, 0.12, 0.6))  # how dark one disc is
    darkness = 1 - (1 - alone) ** np.arange(covered.max(initial=0) + 1)
    dark = darkness[covered].reshape(inner[1], _FINER, inner[0], _FINER).mean((1, 3))
    level = np.round(dark * (len(_PALETTE) - 1)).astype(np.int64)
    colours, cover = _PALETTE[level], _COVER[level][:, :, None]
    under = np.asarray(image.crop((_LEFT, _TOP, _LEFT + inner[0], _TOP + inner[1])), dtype=np.float32)
    mixed = under + (colours - under) * cover  # the grid shows through where there is nothing
    image.paste(Image.fromarray(np.round(mixed).astype(np.uint8)), (_LEFT, _TOP))


def _axes(draw: ImageDraw.ImageDraw, box: Box) -> None:
    right, bottom = SIDE - _RIGHT, SIDE - _BOTTOM
    across, up = _origin(box[0], box[1]), _origin(box[2], box[3])
    if across:
        draw.text((right, bottom + 24), f"{across:.15g} and", _INK, _font(12), "ra")
    if up:
        draw.text((4, 4), f"{up:.15g} and", _INK, _font(12), "la")
    for value, text in _ticks(box[0] - across, box[1] - across, bool(across)):
        value += across
        x = _LEFT + (value - box[0]) / (box[1] - box[0]) * (right - _LEFT)
        draw.line((x, _TOP, x, bottom), _GRID)
        draw.text((x, bottom + 8), text, _INK, _font(14), "ma")
    for value, text in _ticks(box[2] - up, box[3] - up, bool(up)):
        value += up
        y = bottom - (value - box[2]) / (box[3] - box[2]) * (bottom - _TOP)
        draw.line((_LEFT, y, right, y), _GRID)
        draw.text((_LEFT - 8, y), text, _INK, _font(14), "rm")


def _origin(low: float, high: float) -> float:
    """Return what the texts of an axis count from: 0, or where they would be all alike a round number between."""
    if high - low > 1e-4 * max(abs(low), abs(high)):
        return 0.0
    return float(f"{(low + high) / 2:.{math.ceil(math.log10(max(abs(low), abs(high)) / (high - low)))}g}")


def _ticks(low: float, high: float, signed: bool = False) -> list[tuple[float, str]]:
    """Return about six round numbers between two others, each with its text."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    values = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(value, f"{value + 0.0:+.6g}" if signed else f"{value + 0.0:.6g}") for value in values]


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
