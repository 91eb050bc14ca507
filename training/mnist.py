"""MNIST: digits and their labels, from IDX files or downloaded by scikit-learn."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError
from training.idx import read_idx

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
        return _download()
    for folder in (data_dir, data_dir / "mnist"):
        if any((folder / name).is_file() for name in FILES):
            train, test = (read_digits(folder / name) for name in FILES)
            return train, test, "IDX files"
    raise DataError(
        f"data folder {data_dir} has no MNIST: looked for {' and '.join(FILES)} there and in its subfolder mnist. "
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


def _download() -> tuple[NDArray[np.uint8], NDArray[np.uint8], str]:
    from sklearn.datasets import fetch_openml

    try:
        # This parser does not need pandas.
        data, _ = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff", return_X_y=True)
    except (OSError, ValueError) as error:  # no network; unexpected answer from OpenML
        raise DataError(
            f"MNIST could not be downloaded ({str(error).splitlines()[0] or type(error).__name__}); put "
            f"{' and '.join(FILES)} in a folder and name it with --data-dir"
        ) from None
    pixels = np.asarray(data, dtype=np.uint8)
    return pixels[:_TRAINING_DIGITS], pixels[_TRAINING_DIGITS:], "scikit-learn fetch_openml('mnist_784')"


def labels(data_dir: Path | None, train: int, test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels of the `train` training digits and the `test` test digits.

    Raises:
        DataError: a file is missing, damaged or has another length.
    """
    if data_dir is None:
        return _downloaded_labels(train)
    for folder in (data_dir, data_dir / "mnist"):
        if any((folder / name).is_file() for name in LABEL_FILES):
            first, second = (
                read_labels(folder / name, count) for name, count in zip(LABEL_FILES, (train, test), strict=True)
            )
            return first, second
    raise DataError(f"data folder {data_dir} has no MNIST labels: put {' and '.join(LABEL_FILES)} beside the pictures")


def read_labels(path: Path, count: int) -> NDArray[np.int64]:
    """Read one IDX file of `count` labels 0 ... 9.

    Raises:
        DataError: the file cannot be read, or has other labels.
    """
    found = read_idx(path)
    if found.shape != (count,) or found.max(initial=0) > 9:
        raise DataError(
            f"{path} has shape {found.shape} and values up to {found.max(initial=0)}; {count} labels from 0 to 9 are "
            "needed: fetch it again"
        )
    return found.astype(np.int64)


def _downloaded_labels(train: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    from sklearn.datasets import fetch_openml

    # `load` has just downloaded the data: this reads scikit-learn's cache.
    _, target = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff", return_X_y=True)
    numbers = np.asarray(target).astype(np.int64)
    return numbers[:train], numbers[train:]
