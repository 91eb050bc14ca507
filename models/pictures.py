"""Data as a PNG: a sheet of pictures, or a scatter plot of points in the plane.

The same data gives the same bytes. Drawn with Pillow and NumPy alone, so that a server needs no plotting library.
"""

import io
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.pictures import SIDE, scatter

Array = NDArray[np.generic]

MOST_PIXELS = 1 << 24
"""The most pixels of a sheet."""

_GAP = 2  # pixels between pictures
_WISHED = 64  # pixels that a small picture is enlarged to, about
_WIDE = 960  # pixels of a sheet's width up to which pictures are enlarged
_PAPER, _MISSING = 236, 200  # grey between the pictures, and of a cross in place of one that is not finite
_LOW, _HIGH = 0.5, 99.5  # percentiles that become black and white where the range of the data is not known


class PictureError(ValueError):
    """Data of this shape cannot be drawn; the message says what can."""


class TooManyError(PictureError):
    """One sheet cannot hold so many pictures."""


def check(samples: int, shape: Sequence[int]) -> None:
    """Refuse what cannot be drawn, before there is any data.

    Args:
        samples: how many samples there will be.
        shape: of one of them.

    Raises:
        PictureError: the shape is neither a picture nor a point in the plane.
        TooManyError: the sheet would be too large.
    """
    if tuple(shape) == (2,):
        return
    height, width, _ = _layout(shape)
    most = MOST_PIXELS // ((height + _GAP) * (width + _GAP))
    if samples > most:
        raise TooManyError(
            f"num_samples = {samples} is over the {most} pictures of {height} x {width} that one sheet may hold; "
            "ask for fewer and page with first_index"
        )


def most_bytes(samples: int, shape: Sequence[int]) -> int:
    """Return the most bytes that the PNG can take; the arguments must have passed `check`."""
    if tuple(shape) == (2,):
        return 3 * SIDE * SIDE + 4096
    *_, channels = _layout(shape)
    width, height = _Sheet(samples, shape).size
    return width * height * channels + height + height * width // 1000 + 4096


def draw(data: Array, limits: tuple[float, float] | None = None) -> bytes:
    """Draw samples as a PNG.

    Args:
        data: (n, *shape), n at least 1. Points in the plane have the shape (2,). Pictures have (height, width),
            (channels, height, width) or (height, width, channels), with 1 or 3 channels. A row that is not finite
            becomes a crossed box, or is left out of the scatter plot, which then says so.
        limits: the values that are black and white; by the data where left out. Not used for points.

    Raises:
        PictureError, TooManyError: as `check`.
    """
    check(len(data), data.shape[1:])
    image = scatter(data) if data.shape[1:] == (2,) else _Sheet(len(data), data.shape[1:]).draw(data, limits)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def _layout(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return height, width and channels of a picture.

    Raises:
        PictureError: it is none.
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
    """Where pictures stand: how many to a row, how much each is enlarged, and the size of the whole in pixels."""

    def __init__(self, samples: int, shape: Sequence[int]) -> None:
        self.height, self.width, self.channels = _layout(shape)
        self.columns = min(samples, math.ceil(math.sqrt(samples * self.height / self.width)))
        self.rows = -(-samples // self.columns)
        wished = max(1, round(_WISHED / max(self.height, self.width)))
        fits = max(1, _WIDE // (max(self.columns, self.rows) * max(self.height, self.width)))
        few = 2 if samples <= 4 else 1  # a handful may be larger
        self.scale = min(few * wished, fits)

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
        """Return what stands in place of a picture that is not finite, (height, width, 1)."""
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
