"""Arrays from .npy and .npz files, without Python objects."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError

ARRAYS = (".npy", ".npz")


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file by their names; the one of an .npy file has the empty name.

    Raises:
        DataError: the file is missing, empty, damaged, or contains Python objects.
    """
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise DataError(f"data {path} is empty; save your arrays in it with numpy.save or numpy.savez")
            loaded = np.load(file, allow_pickle=False)
            return {key: loaded[key] for key in loaded} if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"data {path} is damaged or contains Python objects ({str(error).splitlines()[0]})") from None
