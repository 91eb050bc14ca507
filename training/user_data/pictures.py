"""Pictures of one size, from a folder of files, an array or an IDX file.

One rule applies to all folders: names that begin with a dot are skipped with everything below them, as are the files
and folders that operating systems and archivers leave behind; other files are selected by their suffix.

Each file is read upright, without alpha, with the value of white for its mode and depth. Modes are Pillow's formats in
memory: `L` is 8-bit grey, `I;16` 16-bit grey, `I` and `F` 32-bit integers and floats, `P` a palette, `RGBA` colours
with alpha.
"""

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from models.messages import first_line
from training.arrays import ARRAYS, load_arrays, read_idx
from training.data_config import ImagesData
from training.errors import DataError
from training.user_data.read import Read, classes, listed

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")

_SYSTEM = {
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "system volume information",
    "lost+found", "__pycache__",
}  # fmt: skip
"""Names that other software leaves behind, in lower case: macOS, Windows, storage servers, file systems, Python."""

_EIGHT_BITS = ("1", "L", "P", "PA", "LA", "La", "RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV")
_FAILURES = (
    OSError, UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning, ValueError,
    SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError, struct.error, zlib.error,
)  # fmt: skip
"""Exceptions that Pillow raises for files that are damaged, not pictures, or absurdly large."""

_WHITE_IS_ZERO = 0  # of TIFF's PhotometricInterpretation
_PHOTOMETRIC = 262
_DARK = 16  # a brightest value below a sixteenth of white is pointed out
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), which Pillow uses."""


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


_Pictures = Callable[[], Iterable[tuple[str, Picture]]]
"""Gives all pictures with their names, again with each call: they are read one at a time."""


def read_images(config: ImagesData) -> Read:
    """Read a folder of pictures, an array (.npy, .npz) or an IDX file.

    Each picture is scaled to 0 ... 1 by its own depth, so 8-bit and 16-bit pictures can be mixed; with `config.range`
    all must be of one kind.

    Raises:
        DataError: there are none, one cannot be read, their sizes differ, or the value of white is not known.
    """
    path = Path(config.path)
    if not path.is_dir():
        return _read_file(path, config)
    files, skipped = picture_files(path)
    samples, notes = _stack(
        path, len(files), lambda: ((str(file), read_picture(file, config)) for file in files), config
    )
    lines = (*notes, *filter(None, [skipped]))
    if not config.conditional:
        return Read(samples, notes=lines)
    for file in files:
        if file.parent == path:
            raise DataError(
                f"data {path}: data.conditional needs each picture in a subfolder named for its class; {file.name} "
                "is in none"
            )
    below = [file.relative_to(path).parts for file in files]
    if deeper := {parts[:2] for parts in below if len(parts) > 2}:
        first = sorted({name for name, _ in deeper})
        lines = (
            *lines,
            f"classes are the folders directly in {path}; those within them are not: {listed(first)} contain "
            f"{listed(sorted({name for _, name in deeper}))}. If these are the classes, use --data {path / first[0]}",
        )
    return _labelled(samples, path, np.array([parts[0] for parts in below]), lines)


def picture_files(folder: Path) -> tuple[list[Path], str]:
    """Return the pictures in a folder and its subfolders, in the order of their names, and what was skipped, in words.

    Links are followed. The name of the folder itself does not matter.

    Raises:
        DataError: there are none, or a folder cannot be read.
    """
    files: list[Path] = []
    skipped: dict[str, list[str]] = {}
    for path in _walk(folder):
        other = path.suffix.lower() not in PICTURES
        kind = _ignored(path.name) or ("of other kinds" if other else "")
        if not kind and path.is_file():
            files.append(path)
        else:
            shown = path.suffix if kind == "of other kinds" and path.suffix else path.name
            skipped.setdefault(kind or "that are broken links or not files", []).append(shown)
    parts = []
    for kind, names in sorted(skipped.items()):
        different = sorted(set(names))
        more = ", ..." if len(different) > 3 else ""
        parts.append(f"{len(names):,} {kind} ({', '.join(different[:3])}{more})")
    summary = f"skipped {', '.join(parts)}" if parts else ""
    if not files:
        more = f"; {summary}" if summary else ""
        raise DataError(
            f"data {folder} has no pictures; looked for {', '.join(PICTURES)} there and in its subfolders{more}"
        )
    return sorted(files), summary


def _ignored(name: str) -> str:
    """Return why a file or folder of this name is skipped, as words that follow a count; empty for others."""
    if name.startswith("."):
        return "hidden"
    return "of the system" if name.lower() in _SYSTEM or name.startswith("~$") else ""


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file, and each folder that is not entered."""

    def fail(error: OSError) -> None:
        raise DataError(f"data folder {error.filename} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        parent, entered = Path(place), []
        for name in sorted(folders):
            path = parent / name
            if _ignored(name):
                yield path
            # A linked folder that contains itself would never end.
            elif not (path.is_symlink() and parent.resolve().is_relative_to(path.resolve())):
                entered.append(name)
        folders[:] = entered
        yield from (parent / name for name in sorted(names))


def _stack(
    path: Path, count: int, pictures: _Pictures, config: ImagesData
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return pictures of one size as samples (n, channels, height, width) in [0, 1], and lines that describe them."""
    kinds: dict[str, tuple[int, float, float, float]] = {}  # pictures, lowest and highest value, white
    samples: NDArray[np.float32] | None = None
    first = ""
    for place, (name, picture) in enumerate(pictures()):
        if samples is None:
            first, samples = name, np.empty((count, *picture.values.shape), np.float32)
        if picture.values.shape != samples.shape[1:]:
            (height, width), (first_h, first_w) = picture.values.shape[:2], samples.shape[1:3]
            raise DataError(
                f"data {name} is {width} x {height} pixels, {Path(first).name} is {first_w} x {first_h}, both upright; "
                "all must have the same size: resize them first"
            )
        samples[place], white = _scaled(name, picture, config, pictures)
        low, high = float(picture.values.min()), float(picture.values.max())
        before = kinds.get(picture.kind, (0, low, high, white))
        kinds[picture.kind] = (before[0] + 1, min(before[1], low), max(before[2], high), white)
        if config.range and len(kinds) > 1:
            raise DataError(
                f"data {name} is {picture.kind}, {Path(first).name} is not; data.range (--range) needs all pictures of "
                "one kind"
            )
    assert samples is not None  # noqa: S101  (there is at least one)
    height, width = samples.shape[1:3]
    form = "colour" if config.colour else "grey"
    lines = [f"read {count:,} pictures of {width} x {height} pixels from {path} as {form}"]
    for kind, (number, low, high, white) in sorted(kinds.items(), key=lambda item: -item[1][0]):
        dark = f"; if {_exact(high)} is white, use --range {_exact(min(low, 0))} {_exact(high)}"
        dark = dark if low < high < white / _DARK else ""
        lines.append(f"{number:,} of {kind}, values {low:g} to {high:g}, white is {white:g}{dark}")
    shaped = samples[:, None] if samples.ndim == 3 else np.ascontiguousarray(np.moveaxis(samples, -1, 1))
    return shaped, tuple(lines)


def _suggestion(pictures: _Pictures) -> str:
    """Return how to set black and white for all pictures."""
    kinds: set[str] = set()
    limits: list[float] = []
    for _, picture in pictures():
        kinds.add(picture.kind)
        values = picture.values[np.isfinite(picture.values)]
        if values.size:
            limits = [min([*limits, float(values.min())]), max([*limits, float(values.max())])]
    first = f"save all pictures as one kind (now {', '.join(sorted(kinds))}), and " if len(kinds) > 1 else ""
    return (
        f"{first}set black and white with --range (in a recipe data.range); all pictures are within "
        f"--range {' '.join(map(_exact, limits))}"
    )


def _exact(value: float) -> str:
    """Return a number with all its digits, which as a limit does not exclude it."""
    return repr(float(value)).removesuffix(".0")


def _scaled(name: str, picture: Picture, config: ImagesData, pictures: _Pictures) -> tuple[NDArray[np.float32], float]:
    """Return stored values scaled to 0 ... 1, and that of white.

    Raises:
        DataError: black and white are not known, or a value is outside or not finite.
    """
    values, (low, white) = picture.values, config.range or (0.0, picture.white)
    if white is None:
        raise DataError(
            f"data {name} is {picture.kind} with values {values.min()} to {values.max()}, and it is not known which is "
            f"white; {_suggestion(pictures)}"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"data {name} contains values that are not finite; remove or repair it")
    least, most = values.min(), values.max()
    if least < low or most > white:
        raise DataError(
            f"data {name} is {picture.kind} with values {least:g} to {most:g}; they must be from {low:g} to {white:g}: "
            f"{_suggestion(pictures)}"
        )
    if low == 0 and values.dtype.kind in "bu":
        scaled = values.astype(np.float32) / np.float32(white)
    else:
        scaled = ((values.astype(np.float64) - low) / (white - low)).astype(np.float32)
    return 1 - scaled if picture.inverted else scaled, white


def _read_file(path: Path, config: ImagesData) -> Read:
    """Read the pictures of one file, with the labels of another."""
    array = _array(path)
    if path.suffix.lower() not in ARRAYS and (array.ndim != 3 or not array.size):
        raise DataError(f"data {path} has bytes of shape {array.shape}; pictures (samples, height, width) are needed")
    samples, notes = _stack(
        path, len(array), lambda: ((str(path), picture) for picture in _of_array(path, array, config)), config
    )
    if not config.conditional:
        return Read(samples, notes=notes)
    if not config.labels:
        raise DataError("data.conditional needs data.labels, the IDX or .npy file of the labels")
    file = Path(config.labels)
    labels = _array(file)
    if labels.shape != (len(samples),):
        raise DataError(f"data {file} has shape {labels.shape}; {len(samples)} pictures need ({len(samples)},)")
    return _labelled(samples, file, labels, notes)


def _labelled(samples: NDArray[np.float32], path: Path, labels: NDArray[Any], notes: tuple[str, ...]) -> Read:
    condition, numbers, line = classes(path, labels)
    return Read(samples, condition, numbers, (*notes, line))


def _array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy, .npz or IDX file."""
    if path.suffix.lower() not in ARRAYS:
        return read_idx(path)
    arrays = load_arrays(path)
    if len(arrays) > 1:
        raise DataError(f"data {path} has the arrays {', '.join(arrays)}; save the one that is needed in an .npy file")
    return arrays.popitem()[1]


def _of_array(path: Path, array: NDArray[Any], config: ImagesData) -> Iterator[Picture]:
    """Yield the pictures of an array (n, height, width), with 1 or 3 channels last, or first if last does not fit.

    Raises:
        DataError: it has another shape or type.
    """
    if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
        array = np.moveaxis(array, 1, -1)
    channels = array.shape[3] if array.ndim == 4 else 1
    if array.ndim not in (3, 4) or channels not in (1, 3) or not array.size or array.dtype.kind not in "biuf":
        alpha = "; blend transparent pixels with a background first" if channels in (2, 4) else ""
        raise DataError(
            f"data {path} has {array.dtype} of shape {array.shape}; pictures (samples, height, width), with 1 or 3 "
            f"channels last or first, are needed{alpha}"
        )
    white = {"b1": 1.0, "u1": 255.0, "u2": 65535.0}.get(array.dtype.str[1:], 1.0 if array.dtype.kind == "f" else None)
    kind = f"{array.dtype.name} {'colour' if channels == 3 else 'grey'}"
    for values in array:
        if channels == 3 and not config.colour:
            weighed = values.astype(np.float64) @ np.array(_LUMA)
            yield Picture(weighed.clip(values.min(), values.max()), kind, white)  # rounding may exceed them
            continue
        grey = values[:, :, 0] if values.ndim == 3 and channels == 1 else values
        yield Picture(np.repeat(grey[:, :, None], 3, axis=2) if config.colour and channels == 1 else grey, kind, white)


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
                return _decoded(file, image, config)
    except _FAILURES as error:
        raise DataError(f"data {file} is not a readable picture: {first_line(error)}") from None


def _decoded(file: Path, image: Image.Image, config: ImagesData) -> Picture:
    pages = getattr(image, "n_frames", 1)
    if pages > 1 and image.format != "MPO":  # a camera's second picture is a smaller copy or a depth map
        raise DataError(f"data {file} contains {pages} pictures (frames or pages); save each one in its own file")
    mode, stored = image.mode, _stored_mode(image)
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
    colours = {"1": "black and white", "L": "grey", "LA": "grey with alpha", "La": "grey with alpha", "P": "palette",
               "PA": "palette with alpha", "RGBA": "colour with alpha", "RGBa": "colour with alpha"}  # fmt: skip
    return Picture(np.asarray(flat), f"{depth} {colours.get(mode, 'colour')} ({mode})", 255.0)


def _stored_mode(image: Image.Image) -> str:
    """Return the mode in which the file stores a picture, if Pillow knows it; it may be deeper than the one read."""
    for tile in getattr(image, "tile", ()):
        arguments = tile[3]
        raw = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
        return raw if isinstance(raw, str) else ""
    return ""


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
