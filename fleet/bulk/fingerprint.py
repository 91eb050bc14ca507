"""The fingerprint of rows, which does not depend on how they are split into shards or on which worker made them.

Each block of `BLOCK` rows is hashed with the number of its first row; the fingerprint is the sum of these hashes modulo
2^256 (Bellare & Micciancio, "A New Paradigm for Collision-Free Hashing: Incrementality at Reduced Cost", EUROCRYPT
1997). It detects accidents: rows lost, duplicated, swapped or damaged. It does not protect against forgery.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fleet.bulk.spec import BLOCK

_MODULUS = 1 << 256


def fingerprint(first: int, samples: NDArray[np.floating]) -> str:
    """Return the fingerprint of consecutive rows, 64 hexadecimal digits.

    Args:
        first: number of the first row in the job, a multiple of `BLOCK`.
        samples: (rows, *shape) float32 or float64.
    """
    rows = np.ascontiguousarray(samples, dtype=samples.dtype.newbyteorder("<"))
    total = 0
    for begin in range(0, len(rows), BLOCK):
        block = hashlib.sha256((first + begin).to_bytes(8, "little"))
        block.update(rows[begin : begin + BLOCK].data.cast("B") if rows.size else b"")
        total += int.from_bytes(block.digest(), "little")
    return f"{total % _MODULUS:064x}"


def together(parts: Iterable[str]) -> str:
    """Return the fingerprint of all rows from those of the shards, in any order."""
    return f"{sum(int(part, 16) for part in parts) % _MODULUS:064x}"
