"""Arrays in files of NumPy, .npy and .npz, as a user gives them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from models.messages import first_line


def load_arrays(path: Path | str) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array of a .npy file, or those of a .npz file by name.

    Raises:
        ValueError: the file is damaged, shorter than its header says, or holds Python objects.
        OSError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:  # NumPy itself leaves a damaged archive open
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                return np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # a claimed size takes no memory
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
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
