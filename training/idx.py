"""IDX files of bytes, as MNIST has them, gzipped or not.

The IDX format (LeCun, Cortes, Burges, "The MNIST database of handwritten digits"): two zero bytes, 8 for unsigned
bytes, the number of axes; then each size as a big-endian 32-bit number; then the bytes, row by row.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError

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
