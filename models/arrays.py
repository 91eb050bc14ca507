"""Arrays in files of NumPy, .npy and .npz, as a user gives them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.messages import first_line


def load_arrays(path: Path | str) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array of a .npy file, or those of a .npz file by name.

    Raises:
        ValueError: the file is damaged, shorter than its header says, or holds Python objects.
        OSError: it cannot be read.
    """
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a claimed size takes no memory
        if isinstance(stored, np.ndarray):
            return np.array(stored)
        with stored:
            return {name: stored[name] for name in stored}
    except OSError:
        raise
    except Exception as error:  # a damaged header or archive can raise anything
        raise ValueError(first_line(error)) from None


def load_array(path: Path | str) -> NDArray[Any]:
    """Return the array of a .npy file; raise as `load_arrays`, and a ValueError for a .npz file."""
    stored = load_arrays(path)
    if isinstance(stored, dict):
        raise ValueError("holds several arrays; save one with numpy.save")
    return stored
