"""IDX files of bytes, in any number of dimensions up to four (see `training.mnist` for the format)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError
from training.files import unzipped

_IDX_BYTES = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or not (see `training.mnist` for the format).

    Raises:
        DataError: it is missing, damaged, or not an IDX file of bytes.
    """
    content = unzipped(path, always=False)
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != bytes([0, 0, _IDX_BYTES]) or not 1 <= axes <= 4 or len(content) < 4 + 4 * axes:
        raise DataError(f"data {path} is not an IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if pixels.size != np.prod([int(size) for size in shape], dtype=object):
        raise DataError(f"data {path} is damaged: its header promises {shape}; it has {pixels.size} bytes")
    return pixels.reshape(shape)
