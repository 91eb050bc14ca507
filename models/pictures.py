"""Samples as a PNG: a sheet of pictures, or a scatter plot of points in the plane.

The same data gives the same bytes. Pillow and NumPy draw it, so that a server needs no plotting library.
"""

import io
import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Array = NDArray[np.generic]
Box = tuple[float, float, float, float]

MAX_PIXELS = 1 << 24
"""The most pixels of a sheet."""

_GAP = 2  # pixels between pictures
_USUAL = 64  # about how many pixels a small picture is enlarged to
_WIDE = 960  # pictures are enlarged up to this width of the sheet in pixels
_PAPER, _MISSING = 236, 200  # grey levels between the pictures, and of the box that replaces a non-finite one
_LOW, _HIGH = 0.5, 99.5  # percentiles that become black and white if the range of the data is unknown

SIDE = 640
"""Width and height of a scatter plot in pixels."""

_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 20, 20, 40  # margins of the frame in pixels
_FINER = 2  # discs are drawn this much larger and then reduced, which smooths their edges
_SPREAD = 3  # points are shown up to this many times the range of the middle 90 % beyond that range
_GRID, _FRAME, _INK = (232, 235, 240), (190, 196, 206), (74, 84, 99)
_COLOURS = np.array([[120, 169, 245], [120, 169, 245], [37, 99, 235], [20, 46, 120]], dtype=np.float64)
_PLACES = np.linspace(0, len(_COLOURS) - 1, 256)
_PALETTE = np.stack([np.interp(_PLACES, range(len(_COLOURS)), _COLOURS[:, c]) for c in range(3)], -1).astype(np.float32)
"""Colours from no point to many; the first third is one colour, which `_COVER` fades in."""
_COVER = np.minimum(1, _PLACES).astype(np.float32)


class PictureError(ValueError):
    """Data of this shape cannot be drawn; the message says what can."""


class TooManyError(PictureError):
    """More pictures than one sheet holds."""


def check(samples: int, shape: Sequence[int]) -> None:
    """Refuse samples that cannot be drawn, before there is any data.

    Args:
        samples: the number of samples.
        shape: shape of one sample.

    Raises:
        PictureError: the shape is neither a picture nor a point in the plane.
        TooManyError: the sheet would be too large.
    """
    if samples > (limit := most(shape)):
        height, width, _ = _layout(shape)
        raise TooManyError(
            f"num_samples = {samples} is over the {limit} pictures of {height} x {width} that one sheet may hold; "
            "ask for fewer and page with first_index"
        )


def most(shape: Sequence[int]) -> int:
    """Return the most samples of a shape that one sheet holds; a scatter plot holds any number of points.

    Raises:
        PictureError: the shape is neither a picture nor a point in the plane.
    """
    if tuple(shape) == (2,):
        return sys.maxsize
    height, width, _ = _layout(shape)
    return MAX_PIXELS // ((height + _GAP) * (width + _GAP))


def max_bytes(samples: int, shape: Sequence[int]) -> int:
    """Return the most bytes that the PNG can take; the arguments must have passed `check`."""
    if tuple(shape) == (2,):
        return 3 * SIDE * SIDE + 4096
    *_, channels = _layout(shape)
    width, height = _Sheet(samples, shape).size
    return width * height * channels + height + height * width // 1000 + 4096


def draw(data: Array, limits: tuple[float, float] | None = None, columns: int | None = None) -> bytes:
    """Draw samples as a PNG.

    Args:
        data: (n, *shape), n at least 1. Points in the plane have the shape (2,). Pictures have (height, width),
            (channels, height, width) or (height, width, channels), with 1 or 3 channels. A row that is not finite
            becomes a crossed box, or is left out of the scatter plot, which then says so.
        limits: the values that are black and white; None takes them from the data. Not used for points.
        columns: pictures in a row of the sheet; by default the sheet is about square.

    Raises:
        PictureError, TooManyError: as `check`.
    """
    check(len(data), data.shape[1:])
    image = _scatter(data) if data.shape[1:] == (2,) else _Sheet(len(data), data.shape[1:], columns).draw(data, limits)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def _layout(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return height, width and channels of a picture.

    Raises:
        PictureError: the shape is not that of a picture.
    """
    match tuple(shape):
        case (height, width) | (1, height, width) | (height, width, 1) if min(height, width) > 1:
            return height, width, 1
        case (3, height, width) | (height, width, 3) if min(height, width) > 1:
            return height, width, 3
    raise PictureError(
        f"samples of the shape {list(shape)} cannot be drawn: a picture needs [height, width], or that with 1 or 3 "
        "channels first or last, and a scatter plot needs points of the shape [2]; ask for another format"
    )


class _Sheet:
    """The layout of a sheet: pictures in a row, their enlargement, and the size of the whole in pixels."""

    def __init__(self, samples: int, shape: Sequence[int], columns: int | None = None) -> None:
        self.height, self.width, self.channels = _layout(shape)
        self.columns = columns or min(samples, math.ceil(math.sqrt(samples * self.height / self.width)))
        self.rows = -(-samples // self.columns)
        usual = max(1, round(_USUAL / max(self.height, self.width)))
        fits = max(1, _WIDE // (max(self.columns, self.rows) * max(self.height, self.width)))
        few = 2 if samples <= 4 else 1  # a handful may be larger
        self.scale = min(few * usual, fits)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        tile_w, tile_h = self.width * self.scale + _GAP, self.height * self.scale + _GAP
        return self.columns * tile_w + _GAP, self.rows * tile_h + _GAP

    def draw(self, data: Array, limits: tuple[float, float] | None) -> Image.Image:
        pictures = np.moveaxis(data, 1, -1) if self.channels == 3 and data.shape[1] == 3 else data
        pictures = pictures.reshape(len(data), self.height, self.width, self.channels)
        finite = np.asarray(np.isfinite(pictures.astype(np.float64)).all((1, 2, 3)))
        grey = _to_bytes(pictures, finite, limits)
        grey[~finite] = self._cross()
        grey = grey.repeat(self.scale, 1).repeat(self.scale, 2)
        width, height = self.size
        sheet = np.full((height, width, self.channels), _PAPER, dtype=np.uint8)
        tile_w, tile_h = grey.shape[2] + _GAP, grey.shape[1] + _GAP
        for k, picture in enumerate(grey):
            top, left = k // self.columns * tile_h + _GAP, k % self.columns * tile_w + _GAP
            sheet[top : top + grey.shape[1], left : left + grey.shape[2]] = picture
        return Image.fromarray(sheet[:, :, 0] if self.channels == 1 else sheet)

    def _cross(self) -> NDArray[np.uint8]:
        """Return a crossed box in place of a picture that is not finite, (height, width, 1)."""
        y = np.arange(self.height)[:, None] / max(1, self.height - 1)
        x = np.arange(self.width)[None, :] / max(1, self.width - 1)
        near = np.minimum(np.abs(x - y), np.abs(x + y - 1)) < 0.6 / min(self.height, self.width)
        return np.where(near, _MISSING - 100, _MISSING).astype(np.uint8)[:, :, None]


def _to_bytes(pictures: Array, finite: NDArray[np.bool_], limits: tuple[float, float] | None) -> NDArray[np.uint8]:
    values = np.where(finite[:, None, None, None], pictures, 0).astype(np.float64)
    if limits is None:
        shown = values[finite]
        limits = tuple(np.percentile(shown, (_LOW, _HIGH))) if shown.size else (0.0, 1.0)
    black, white = limits
    scaled = (values - black) / max(white - black, np.finfo(np.float64).tiny)
    return np.round(np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _scatter(points: NDArray[np.generic]) -> Image.Image:
    """Draw points (n, 2) on axes of one scale; a caption counts those not shown as they are far off or not finite."""
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
        draw.text((SIDE - _RIGHT, 4), text, _INK, ImageFont.load_default(12), "ra")
    return image


def _box(points: NDArray[np.float64]) -> Box:
    """Return the square of the plane that is shown."""
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
    """Add a disc for each point; the number of discs that cover a place decides its colour."""
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
        draw.text((right, bottom + 24), f"{across:.15g} and", _INK, ImageFont.load_default(12), "ra")
    if up:
        draw.text((4, 4), f"{up:.15g} and", _INK, ImageFont.load_default(12), "la")
    for value, text in _ticks(box[0] - across, box[1] - across, bool(across)):
        value += across
        x = _LEFT + (value - box[0]) / (box[1] - box[0]) * (right - _LEFT)
        draw.line((x, _TOP, x, bottom), _GRID)
        draw.text((x, bottom + 8), text, _INK, ImageFont.load_default(14), "ma")
    for value, text in _ticks(box[2] - up, box[3] - up, bool(up)):
        value += up
        y = bottom - (value - box[2]) / (box[3] - box[2]) * (bottom - _TOP)
        draw.line((_LEFT, y, right, y), _GRID)
        draw.text((_LEFT - 8, y), text, _INK, ImageFont.load_default(14), "rm")


def _origin(low: float, high: float) -> float:
    """Return the origin of an axis' labels: 0, or a round number in its range if they would all look alike."""
    if high - low > 1e-4 * max(abs(low), abs(high)):
        return 0.0
    return float(f"{(low + high) / 2:.{math.ceil(math.log10(max(abs(low), abs(high)) / (high - low)))}g}")


def _ticks(low: float, high: float, signed: bool = False) -> list[tuple[float, str]]:
    """Return about six round numbers between two others, each with its label."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    values = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(value, f"{value + 0.0:+.6g}" if signed else f"{value + 0.0:.6g}") for value in values]
