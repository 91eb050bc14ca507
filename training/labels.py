"""The labels of MNIST, from IDX files beside the pictures or from scikit-learn's cache.

The format is that of `training.mnist`, with magic number 0x00000801 for bytes in one dimension.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError
from training.files import unzipped

LABEL_FILES = ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
"""Names of the two files of labels."""

_MAGIC = 0x00000801


def labels(data_dir: Path | None, train: int, test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels of the training and the test digits, so many of each.

    Raises:
        DataError: a file is missing, damaged or of another length.
    """
    if data_dir is None:
        return _downloaded(train)
    for folder in (data_dir, data_dir / "mnist"):
        if any((folder / name).is_file() for name in LABEL_FILES):
            first, second = (
                read_labels(folder / name, count) for name, count in zip(LABEL_FILES, (train, test), strict=True)
            )
            return first, second
    raise DataError(f"data folder {data_dir} has no MNIST labels: put {' and '.join(LABEL_FILES)} beside the pictures")


def read_labels(path: Path, count: int) -> NDArray[np.int64]:
    """Read one gzipped IDX file of `count` labels 0 ... 9.

    Raises:
        DataError: the file is missing, unreadable, no IDX of labels, or has another number of labels.
    """
    content = unzipped(path)
    if len(content) < 8 or struct.unpack(">II", content[:8]) != (_MAGIC, count) or len(content) != 8 + count:
        raise DataError(f"{path} is not an IDX file of {count} labels; fetch it again")
    found = np.frombuffer(content, np.uint8, offset=8).astype(np.int64)
    if found.max(initial=0) > 9:
        raise DataError(f"{path} holds the label {found.max()}; labels are 0 to 9; fetch it again")
    return found


def _downloaded(train: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    from sklearn.datasets import fetch_openml

    # `mnist.load` has just downloaded it: this comes from scikit-learn's cache.
    _, target = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff", return_X_y=True)
    numbers = np.asarray(target).astype(np.int64)
    return numbers[:train], numbers[train:]
