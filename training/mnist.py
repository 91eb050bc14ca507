"""MNIST: digits and their labels, from IDX files or downloaded by scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.arrays import read_idx
from training.errors import DataError

FILES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
"""Names of the two files of pictures."""

LABEL_FILES = ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
"""Names of the two files of labels."""

_SIDE = 28
_TRAINING_DIGITS = 60_000


def load(data_dir: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8], str]:
    """Return the training digits (60000, 784), the test digits (10000, 784), both 0 ... 255, and their source.

    Args:
        data_dir: the folder with the IDX files, or one whose subfolder `mnist` has them; None downloads them with
            scikit-learn's `fetch_openml`, which caches them.

    Raises:
        DataError: a file is missing or damaged, or the download failed.
    """
    if data_dir is None:
        pixels = np.asarray(_download()[0], dtype=np.uint8)
        return pixels[:_TRAINING_DIGITS], pixels[_TRAINING_DIGITS:], "scikit-learn fetch_openml('mnist_784')"
    train, test = map(read_digits, _files(data_dir, "MNIST", FILES))
    return train, test, "IDX files"


def labels(data_dir: Path | None, train: int, test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels of the `train` training digits and the `test` test digits.

    Raises:
        DataError: a file is missing, damaged or has another length.
    """
    if data_dir is None:
        numbers = np.asarray(_download()[1]).astype(np.int64)
        return numbers[:train], numbers[train:]
    first, second = _files(data_dir, "MNIST labels", LABEL_FILES)
    return read_labels(first, train), read_labels(second, test)


def _files(data_dir: Path, what: str, names: tuple[str, str]) -> list[Path]:
    """Return both files, from the folder that has one of them: the given one, or its subfolder `mnist`."""
    for folder in (data_dir, data_dir / "mnist"):
        if any((folder / name).is_file() for name in names):
            return [folder / name for name in names]
    raise DataError(
        f"data folder {data_dir} has no {what}: looked for {' and '.join(names)} there and in its subfolder mnist. "
        "Put them there, or leave --data-dir and PATHLINE_DATA_DIR out to download them"
    )


def read_digits(path: Path) -> NDArray[np.uint8]:
    """Read one IDX file of 28 x 28 pictures into (n, 784) bytes.

    Raises:
        DataError: the file cannot be read, or has other shapes.
    """
    pictures = read_idx(path)
    if pictures.shape[1:] != (_SIDE, _SIDE):
        raise DataError(f"{path} has shape {pictures.shape}; pictures of 28 x 28 pixels are needed: fetch it again")
    return pictures.reshape(-1, _SIDE * _SIDE)


def read_labels(path: Path, count: int) -> NDArray[np.int64]:
    """Read one IDX file of `count` labels 0 ... 9.

    Raises:
        DataError: the file cannot be read, or has other labels.
    """
    numbers = read_idx(path)
    if numbers.shape != (count,) or numbers.max(initial=0) > 9:
        raise DataError(
            f"{path} has shape {numbers.shape} and values up to {numbers.max(initial=0)}; {count} labels from 0 to 9 "
            "are needed: fetch it again"
        )
    return numbers.astype(np.int64)


def _download() -> tuple[Any, Any]:
    """Return pixels and labels of all 70,000 digits, from scikit-learn's cache after the first time."""
    from sklearn.datasets import fetch_openml

    try:
        # This parser does not need pandas.
        data, target = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff", return_X_y=True)
    except (OSError, ValueError) as error:  # no network; unexpected answer from OpenML
        raise DataError(
            f"MNIST could not be downloaded ({str(error).splitlines()[0] or type(error).__name__}); put "
            f"{' and '.join(FILES)} in a folder and name it with --data-dir"
        ) from None
    return data, target
