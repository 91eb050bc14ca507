"""Arrays from .npy and .npz files, without Python objects."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import arrays
from training.errors import DataError

ARRAYS = (".npy", ".npz")


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file by their names; the one of an .npy file has the empty name.

    Raises:
        DataError: the file is missing, empty, damaged, or contains Python objects.
    """
    try:
        if not path.stat().st_size:
            raise DataError(f"data {path} is empty; save your arrays in it with numpy.save or numpy.savez")
        stored = arrays.load_arrays(path)
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"data {path} is damaged or contains Python objects ({error})") from None
    return stored if isinstance(stored, dict) else {"": stored}


_BYTES = bytes([0, 0, 8])
_MAX_AXES = 4


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, in any number of dimensions up to four.

    Raises:
        DataError: it is missing, damaged, or not an IDX file of bytes.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"data {path} is damaged ({error})") from None
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror}") from None
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != _BYTES or not 1 <= axes <= _MAX_AXES or len(content) < 4 + 4 * axes:
        raise DataError(f"data {path} is not an IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if pixels.size != np.prod([int(size) for size in shape], dtype=object):
        raise DataError(f"data {path} is damaged: its header promises {shape}; it has {pixels.size} bytes")
    return pixels.reshape(shape)
