"""Pictures of one size, from a folder of files, an array or an IDX file."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data_config import ImagesData
from training.errors import DataError
from training.idx import read_idx
from training.user_data.arrays import ARRAYS, load_arrays
from training.user_data.folders import Listing, list_files
from training.user_data.picture import Picture, read_picture
from training.user_data.read import Read, classes, describe_classes, listed

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")

_DARK = 16  # a brightest value below a sixteenth of white is pointed out
_Pictures = Callable[[], Iterable[tuple[str, Picture]]]
"""Gives all pictures with their names, again with each call: they are read one at a time."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), which Pillow uses."""


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
    listing = picture_files(path)
    files = listing.files
    samples, notes = _stack(
        path, len(files), lambda: ((str(file), read_picture(file, config)) for file in files), config
    )
    lines = (*notes, *filter(None, [listing.summary()]))
    if not config.conditional:
        return Read(samples, notes=lines)
    for file in files:
        if file.parent == path:
            raise DataError(
                f"data {path}: data.conditional needs each picture in a subfolder named for its class; {file.name} "
                "is in none"
            )
    below = [file.relative_to(path).parts for file in files]
    lines = (*lines, *_deeper(path, {parts[:2] for parts in below if len(parts) > 2}))
    return _labelled(samples, path, np.array([parts[0] for parts in below]), lines)


def _deeper(path: Path, folders: set[tuple[str, ...]]) -> list[str]:
    """Return a line on the folders (class, folder) within those that were taken as classes, if there are any."""
    if not folders:
        return []
    classes = sorted({name for name, _ in folders})
    return [
        f"classes are the folders directly in {path}; those within them are not: {listed(classes)} contain "
        f"{listed(sorted({name for _, name in folders}))}. If these are the classes, use --data {path / classes[0]}"
    ]


def picture_files(folder: Path) -> Listing:
    """Return the pictures in a folder and its subfolders, in the order of their names, and what was skipped.

    Raises:
        DataError: there are none, or a folder cannot be read.
    """
    found = list_files(folder, PICTURES)
    if not found.files:
        more = f"; {found.summary()}" if found.skipped else ""
        raise DataError(
            f"data {folder} has no pictures; looked for {', '.join(PICTURES)} there and in its subfolders{more}"
        )
    return found


@dataclass
class _Account:
    """Summary of what was read, for the first lines of a run.

    Attributes:
        kinds: number of pictures of each kind.
        low, high: the smallest and the largest stored value of each kind.
        white: the value of white in each kind.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    white: dict[str, float] = field(default_factory=dict)

    def add(self, picture: Picture, white: float) -> None:
        kind, low, high = picture.kind, float(picture.values.min()), float(picture.values.max())
        self.kinds[kind] += 1
        self.low[kind] = min(low, self.low.get(kind, low))
        self.high[kind] = max(high, self.high.get(kind, high))
        self.white[kind] = white

    def lines(self) -> Iterator[str]:
        for kind, count in self.kinds.most_common():
            low, high, white = self.low[kind], self.high[kind], self.white[kind]
            dark = f"; if {_exact(high)} is white, use --range {_exact(min(low, 0))} {_exact(high)}"
            dark = dark if low < high < white / _DARK else ""
            yield f"{count:,} of {kind}, values {low:g} to {high:g}, white is {white:g}{dark}"


def _stack(
    path: Path, count: int, pictures: _Pictures, config: ImagesData
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return pictures of one size as samples (n, channels, height, width) in [0, 1], and lines that describe them."""
    account = _Account()
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
        low, white = _limits(name, picture, config, pictures)
        account.add(picture, white)
        if config.range and len(account.kinds) > 1:
            raise DataError(
                f"data {name} is {picture.kind}, {Path(first).name} is not; data.range (--range) needs all pictures of "
                "one kind"
            )
        samples[place] = _scaled(name, picture, low, white, pictures)
    assert samples is not None  # noqa: S101  (there is at least one)
    height, width = samples.shape[1:3]
    form = "colour" if config.colour else "grey"
    summary = f"read {count:,} pictures of {width} x {height} pixels from {path} as {form}"
    shaped = samples[:, None] if samples.ndim == 3 else np.ascontiguousarray(np.moveaxis(samples, -1, 1))
    return shaped, (summary, *account.lines())


def _limits(name: str, picture: Picture, config: ImagesData, pictures: _Pictures) -> tuple[float, float]:
    """Return the stored values that become 0 and 1; raise a DataError if they are not known."""
    if config.range:
        return config.range[0], config.range[1]
    if picture.white is not None:
        return 0.0, picture.white
    low, high = picture.values.min(), picture.values.max()
    raise DataError(
        f"data {name} is {picture.kind} with values {low} to {high}, and it is not known which is white; "
        f"{_suggestion(pictures)}"
    )


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


def _scaled(name: str, picture: Picture, low: float, white: float, pictures: _Pictures) -> NDArray[np.float32]:
    """Return stored values scaled to 0 ... 1; raise a DataError if one is outside or not finite."""
    values = picture.values
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
    return 1 - scaled if picture.inverted else scaled


def _read_file(path: Path, config: ImagesData) -> Read:
    """Read the pictures of one file, with the labels of another."""
    array = _array(path) if path.suffix.lower() in ARRAYS else _idx(path)
    samples, notes = _stack(
        path, len(array), lambda: ((str(path), picture) for picture in _of_array(path, array, config)), config
    )
    if not config.conditional:
        return Read(samples, notes=notes)
    if not config.labels:
        raise DataError("data.conditional needs data.labels, the IDX or .npy file of the labels")
    file = Path(config.labels)
    labels = _array(file) if file.suffix.lower() in ARRAYS else read_idx(file)
    if labels.shape != (len(samples),):
        raise DataError(f"data {file} has shape {labels.shape}; {len(samples)} pictures need ({len(samples)},)")
    return _labelled(samples, file, labels, notes)


def _labelled(samples: NDArray[np.float32], path: Path, labels: NDArray[Any], notes: tuple[str, ...]) -> Read:
    condition, numbers = classes(path, labels)
    return Read(samples, condition, numbers, (*notes, describe_classes(condition, numbers)))


def _idx(path: Path) -> NDArray[np.uint8]:
    found = read_idx(path)
    if found.ndim != 3 or not found.size:
        raise DataError(f"data {path} has bytes of shape {found.shape}; pictures (samples, height, width) are needed")
    return found


def _array(path: Path) -> NDArray[Any]:
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
