"""One picture from a file, as numbers: upright, without alpha, with the value of white for its mode and depth.

Modes are Pillow's formats in memory: `L` is 8-bit grey, `I;16` 16-bit grey, `I` and `F` 32-bit integers and floats, `P`
a palette, `RGBA` colours with alpha.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from models.messages import first_line
from training.data_config import ImagesData
from training.errors import DataError

_EIGHT_BITS = ("1", "L", "P", "PA", "LA", "La", "RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV")
_FAILURES = (
    OSError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)
"""Exceptions that Pillow raises for files that are damaged, not pictures, or absurdly large."""

_WHITE_IS_ZERO = 0  # of TIFF's PhotometricInterpretation
_PHOTOMETRIC = 262


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        values: (height, width), or (height, width, 3) if colours are kept; numbers as stored.
        kind: depth and colours, such as "16-bit grey".
        white: the value of white; None if depth and mode do not determine it, as for 32-bit integers.
        inverted: whether 0 is white and `white` black.
    """

    values: NDArray[np.generic]
    kind: str
    white: float | None
    inverted: bool = False


def read_picture(file: Path, config: ImagesData) -> Picture:
    """Read a picture file.

    Raises:
        DataError: it is damaged or not a picture, contains several, has transparent pixels and no background is set, or
            has a mode without a clear conversion to RGB.
    """
    try:
        # Before it decodes a picture, Pillow warns if it is large enough to be an attack on memory.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Opened as a stream: by name, Pillow would map a rotated TIFF into memory with width and height exchanged.
            with file.open("rb") as stream, Image.open(stream) as image:
                return _read(file, image, config)
    except _FAILURES as error:
        raise DataError(f"data {file} is not a readable picture: {first_line(error)}") from None


def _read(file: Path, image: Image.Image, config: ImagesData) -> Picture:
    pages = getattr(image, "n_frames", 1)
    if pages > 1 and image.format != "MPO":  # a camera's second picture is a smaller copy or a depth map
        raise DataError(f"data {file} contains {pages} pictures (frames or pages); save each one in its own file")
    mode, stored = image.mode, _stored(image)
    # Pillow undoes a TIFF's white-is-zero for 8 bits only
    inverted = mode not in _EIGHT_BITS and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    image = ImageOps.exif_transpose(image)
    if mode.startswith("I;16") or mode in ("I", "F"):
        if image.has_transparency_data:
            raise DataError(
                f"data {file} has a transparent grey in {mode}, which is not supported; flatten the picture first"
            )
        values = np.asarray(image)
        if config.colour:
            values = np.repeat(values[:, :, None], 3, axis=2)
        if mode == "F":
            return Picture(values, "float grey (F)", 1.0, inverted)
        if mode == "I":
            return Picture(values, "32-bit integer grey (I)", None, inverted)
        bits = 12 if stored == "I;12" else 16
        return Picture(values, f"{bits}-bit grey ({mode})", float(2**bits - 1), inverted)
    if mode not in _EIGHT_BITS:
        raise DataError(
            f"data {file} has the mode {mode}, which has no clear conversion to RGB; save it as RGB or grey"
        )
    flat = _without_alpha(file, image, config.background).convert("RGB" if config.colour else "L")
    depth = "16-bit, read with 8" if "16" in stored else "1-bit" if mode == "1" else "8-bit"
    return Picture(np.asarray(flat), f"{depth} {_named(mode)}", 255.0)


def _stored(image: Image.Image) -> str:
    """Return the mode in which the file stores a picture, if Pillow knows it; it may be deeper than the one read."""
    for tile in getattr(image, "tile", ()):
        arguments = tile[3]
        raw = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
        return raw if isinstance(raw, str) else ""
    return ""


def _named(mode: str) -> str:
    what = {"1": "black and white", "L": "grey", "LA": "grey with alpha", "La": "grey with alpha", "P": "palette"}
    what |= {"PA": "palette with alpha", "RGBA": "colour with alpha", "RGBa": "colour with alpha"}
    return f"{what.get(mode, 'colour')} ({mode})"


def _without_alpha(file: Path, image: Image.Image, background: str) -> Image.Image:
    """Blend a picture with the background; an opaque one only loses its alpha.

    Raises:
        DataError: it has transparent pixels and there is no background.
    """
    if not image.has_transparency_data:
        return image
    if image.mode in ("La", "RGBa"):  # colours that were multiplied by alpha
        image = image.convert(image.mode.upper())
    image = image.convert("RGBA")
    lowest, _ = image.getchannel("A").getextrema()
    if lowest == 255:
        return image.convert("RGB")
    if not background:
        raise DataError(
            f"data {file} has transparent pixels; set the colour behind them with --background (white, black or "
            '#rrggbb), or in a recipe with data.background = "white"'
        )
    return Image.alpha_composite(Image.new("RGBA", image.size, background), image).convert("RGB")
