"""Data of your own: rows of numbers, or pictures, read and checked; each error names the file and the place in it."""

import csv
import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.condition import LabelCondition, VectorCondition
from training.config import ImagesData, OwnData, VectorsData
from training.errors import DataError
from training.files import unzipped

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_IDX_BYTES = 0x08


@dataclass(frozen=True)
class Read:
    """What was read.

    Attributes:
        samples: (samples, *shape), float32; pictures are (samples, channels, height, width) in [0, 1].
        condition: what they are conditioned on, or None.
        conditions: labels (samples,) int64 or vectors (samples, width) float32, or None.
    """

    samples: NDArray[np.float32]
    condition: LabelCondition | VectorCondition | None = None
    conditions: NDArray[Any] | None = None


def content_hash(config: OwnData) -> str:
    """Sha256 of a file, or of a folder's pictures with their names, and of the labels file where there is one.

    Raises:
        DataError: no place is given, or it cannot be read.
    """
    if not config.path:
        raise DataError("data.path is not given; name your file or folder with --data, or in the recipe")
    path = Path(config.path)
    digest = hashlib.sha256()
    files = _pictures(path) if path.is_dir() and isinstance(config, ImagesData) else [path]
    if isinstance(config, ImagesData) and config.labels:
        files = [*files, Path(config.labels)]
    try:
        for file in files:
            digest.update(str(file.relative_to(path)).encode() if file.is_relative_to(path) else b"")
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError as error:
        raise DataError(f"data {error.filename} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def read_vectors(config: VectorsData) -> Read:
    """Read rows of numbers.

    Raises:
        DataError: the file is missing, damaged, of another kind, empty, or holds what is no finite number; the message
            names the row and column.
    """
    path = Path(config.path)
    if path.suffix.lower() not in (".npy", ".npz", ".csv"):
        raise DataError(f"data {path} is no .npy, .npz or .csv file; save your rows as one of these")
    if path.suffix.lower() == ".csv":
        return _read_csv(path, config)
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            arrays = {key: loaded[key] for key in loaded} if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"data {path} is damaged or holds Python objects ({str(error).splitlines()[0]})") from None
    if "" in arrays and (config.label or config.condition):
        raise DataError(f"data {path}: an .npy file has no labels or conditions; use an .npz with one array for each")
    labels = _take(path, arrays, config.label) if config.label else None
    if len(config.condition) > 1:
        raise DataError(f"data.condition is {config.condition}; of an .npz it names the one array of vectors")
    vectors = _take(path, arrays, config.condition[0]) if config.condition else None
    if len(config.columns) > 1:
        raise DataError(f"data.columns is {config.columns}; of an .npz it names the one array of samples")
    if config.columns:
        rows = _take(path, arrays, config.columns[0])
    elif len(arrays) == 1:
        rows = arrays.popitem()[1]
    else:
        raise DataError(
            f'data {path} has the arrays {", ".join(arrays)}; name the samples: columns = ["{next(iter(arrays))}"]'
        )
    return _checked(path, rows, labels, vectors)


def _take(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"data {path} has no array {name!r} left; it has {', '.join(arrays) or 'none'}")
    return arrays.pop(name)


def _read_csv(path: Path, config: VectorsData) -> Read:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"data {path} is no CSV text: {error}") from None
    if not table:
        raise DataError(f"data {path} is empty; one row a sample is needed")
    named = not all(_is_number(cell) for cell in table[0])
    header = [cell.strip() for cell in table[0]] if named else [str(number) for number in range(len(table[0]))]
    body = table[named:]
    for number, row in enumerate(body, 1 + named):
        if len(row) != len(header):
            raise DataError(f"data {path}: row {number} has {len(row)} columns; the first row has {len(header)}")
    special = {*config.condition, config.label} - {""}
    data = config.columns or [name for name in header if name not in special]
    for name in (*data, *special):
        if name not in header:
            raise DataError(f"data {path} has no column {name!r}; it has {', '.join(header)}")
    if not data:
        raise DataError(f"data {path} has no column left for the samples; it has {', '.join(header)}")

    def numbers(names: list[str]) -> NDArray[np.float64]:
        places = [header.index(name) for name in names]
        found = np.empty((len(body), len(places)))
        for number, row in enumerate(body):
            for column, place in enumerate(places):
                if not _is_number(row[place]):
                    where = f"row {number + 1 + named}, column {header[place]}"
                    raise DataError(f"data {path}: {where} is {row[place]!r}; a number is needed")
                found[number, column] = float(row[place])
        return found

    labels = np.array([row[header.index(config.label)].strip() for row in body]) if config.label else None
    return _checked(path, numbers(data), labels, numbers(config.condition) if config.condition else None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _checked(path: Path, rows: NDArray[Any], labels: NDArray[Any] | None, vectors: NDArray[Any] | None) -> Read:
    """Check the shapes and numbers of what was read."""
    if labels is not None and vectors is not None:
        raise DataError(f"data {path}: label and condition are both given; a model takes one of them")
    samples = _finite(path, "the samples", rows)
    if labels is not None:
        if labels.shape != (len(samples),):
            raise DataError(f"data {path}: labels have shape {labels.shape}; one a sample is needed, ({len(samples)},)")
        condition, numbers = classes(path, labels)
        return Read(samples, condition, numbers)
    if vectors is None:
        return Read(samples)
    conditions = _finite(path, "the conditions", vectors)
    if len(conditions) != len(samples):
        raise DataError(f"data {path}: {len(conditions)} conditions for {len(samples)} samples; one each is needed")
    return Read(samples, VectorCondition(width=conditions.shape[1]), conditions)


def _finite(path: Path, what: str, rows: NDArray[Any]) -> NDArray[np.float32]:
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "iufb":
        raise DataError(
            f"data {path}: {what} are {rows.dtype} of shape {rows.shape}; numbers of shape (samples, columns) are "
            "needed, both at least 1"
        )
    with np.errstate(over="ignore"):
        numbers = rows.astype(np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        row, column = bad[0]
        bad_value = rows[row, column]
        raise DataError(
            f"data {path}: {what} hold {len(bad)} numbers that are not finite in float32, the first {bad_value} "
            f"in sample {row}, column {column} (counted from 0); take such rows out"
        )
    return numbers


def classes(path: Path, labels: NDArray[Any]) -> tuple[LabelCondition, NDArray[np.int64]]:
    """Number the classes of labels, words or whole numbers, in their order; names are kept where they say more.

    Raises:
        DataError: a label is no word and no whole number.
    """
    if labels.dtype.kind == "U" and all(label.isdecimal() for label in labels):
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise DataError(
            f"data {path}: labels are {labels.dtype}, such as {labels[0]!r}; whole numbers or words are needed"
        )
    found, numbers = np.unique(labels, return_inverse=True)
    names = None if np.array_equal(found, np.arange(len(found))) else tuple(str(name) for name in found)
    return LabelCondition(classes=len(found), names=names), numbers.astype(np.int64).reshape(-1)


def read_images(config: ImagesData) -> Read:
    """Read a folder of pictures or an IDX file.

    Raises:
        DataError: there is none, one cannot be read, or their sizes differ.
    """
    path = Path(config.path)
    if not path.is_dir():
        return _read_idx_images(path, config)
    from PIL import Image, UnidentifiedImageError

    files = _pictures(path)
    pictures: list[NDArray[np.uint8]] = []
    for file in files:
        try:
            with Image.open(file) as image:
                pictures.append(np.asarray(image.convert("RGB" if config.colour else "L")))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
            raise DataError(f"data {file} is no picture that can be read: {str(error).splitlines()[0]}") from None
        if pictures[-1].shape != pictures[0].shape:
            size, first = pictures[-1].shape[:2], pictures[0].shape[:2]
            raise DataError(
                f"data {file} is {size[1]} x {size[0]} pixels, {files[0].name} is {first[1]} x {first[0]}; all must be "
                "of one size: resize them first"
            )
    stack = np.stack(pictures)
    samples = (stack[:, None] if stack.ndim == 3 else np.moveaxis(stack, -1, 1)).astype(np.float32) / np.float32(255)
    if not config.conditional:
        return Read(samples)
    if any(file.parent == path for file in files):
        raise DataError(f"data {path}: data.conditional needs each picture in a subfolder named for its class")
    return Read(samples, *classes(path, np.array([file.relative_to(path).parts[0] for file in files])))


def _pictures(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())
    if not files:
        raise DataError(f"data {folder} has no pictures; looked for {', '.join(PICTURES)} there and in its subfolders")
    return files


def _read_idx_images(path: Path, config: ImagesData) -> Read:
    pixels = read_idx(path)
    if pixels.ndim != 3 or not pixels.size:
        raise DataError(
            f"data {path} holds bytes of shape {pixels.shape}; pictures (samples, height, width) are needed"
        )
    samples = pixels[:, None].astype(np.float32) / np.float32(255)
    if not config.conditional:
        return Read(samples)
    if not config.labels:
        raise DataError("data.conditional needs data.labels, the IDX file of the labels")
    labels = read_idx(Path(config.labels))
    if labels.shape != (len(samples),):
        raise DataError(
            f"data {config.labels} has shape {labels.shape}; {len(samples)} pictures need ({len(samples)},)"
        )
    return Read(samples, *classes(Path(config.labels), labels))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or not (see `training.mnist` for the format).

    Raises:
        DataError: it is missing, damaged, or no IDX file of bytes.
    """
    content = unzipped(path, always=False)
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != bytes([0, 0, _IDX_BYTES]) or not 1 <= axes <= 4 or len(content) < 4 + 4 * axes:
        raise DataError(f"data {path} is no IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if pixels.size != np.prod([int(size) for size in shape], dtype=object):
        raise DataError(f"data {path} is damaged: its header promises {shape}; it has {pixels.size} bytes")
    return pixels.reshape(shape)
