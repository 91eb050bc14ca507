"""Rows of numbers from .npy, .npz and .csv files."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from training.data_config import VectorsData
from training.errors import DataError
from training.user_data.arrays import load_arrays
from training.user_data.read import Columns, Read, checked
from training.user_data.table import read_table


def read_vectors(config: VectorsData) -> Read:
    """Read rows of numbers.

    Raises:
        DataError: the file is missing, damaged, of another kind, empty, or has a value that is not a finite number; the
            message names the row and column.
    """
    path = Path(config.path)
    if path.suffix.lower() not in (".npy", ".npz", ".csv"):
        raise DataError(f"data {path} is not a .npy, .npz or .csv file; save your rows as one of these")
    if path.suffix.lower() == ".csv":
        return read_table(path, config)
    arrays = load_arrays(path)
    if "" in arrays and (config.label or config.condition):
        raise DataError(f"data {path}: an .npy file has no labels or conditions; use an .npz with one array for each")
    labels = _take(path, arrays, config.label) if config.label else None
    if len(config.condition) > 1:
        raise DataError(f"data.condition is {config.condition}; for an .npz it must name one array of vectors")
    vectors = _take(path, arrays, config.condition[0]) if config.condition else None
    if len(config.columns) > 1:
        raise DataError(f"data.columns is {config.columns}; for an .npz it must name one array of samples")
    if config.columns:
        rows = _take(path, arrays, config.columns[0])
    elif len(arrays) == 1:
        rows = arrays.popitem()[1]
    else:
        raise DataError(
            f'data {path} has the arrays {", ".join(arrays)}; name the samples: columns = ["{next(iter(arrays))}"]'
        )
    return checked(path, _numbered(rows), labels, None if vectors is None else _numbered(vectors))


def _numbered(rows: NDArray[Any]) -> Columns:
    return Columns(rows, [str(place) for place in range(rows.shape[1] if rows.ndim == 2 else 0)])


def _take(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"data {path} has no array {name!r} left; it has {', '.join(arrays) or 'none'}")
    return arrays.pop(name)
