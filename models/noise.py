"""The starting noise of sample i of a seed: random access, the same bits wherever it is asked from.

Scheme `philox-ndtri-v1`: a sample of D numbers owns ceil(D / 4) counters of NumPy's `Philox(key=seed)`,
each worth four 64-bit words u (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its
noise is the normal quantile of ((u >> 11) + 1/2) / 2^53, in float64, cast to the model's dtype. A rejection
sampler would use a varying number of words, and sample i would depend on those before it.
"""

import math
import operator

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

SCHEME = "philox-ndtri-v1"
"""The name of this scheme in cards and answers; another way of making noise needs another name."""

SEED_LIMIT = 1 << 63
"""Seeds are integers in [0, SEED_LIMIT)."""

_WORDS_PER_COUNTER = 4
_WORDS_AT_ONCE = 1 << 20  # bounds the float64 temporaries at 8 MiB each
_BELOW_ONE = 1.0 - 2.0**-53
_NUMPY_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class NoiseError(ValueError):
    """Noise was asked for with a seed, index, number or dtype that there is none for."""


def noise(
    seed: int,
    first_index: int,
    num_samples: int,
    event_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Make the noise of samples `first_index` ... `first_index + num_samples - 1` of a seed, on the CPU.

    Args:
        seed: an integer in [0, 2^63).
        first_index: index of the first sample, in [0, 2^63).
        num_samples: how many samples, at least 0.
        event_shape: shape of one sample.
        dtype: float32 or float64; the numbers are made in float64 and then cast.

    Returns:
        Standard normal numbers, (num_samples, *event_shape). Row j depends on seed and first_index + j only.

    Raises:
        NoiseError: an argument is outside these ranges.
    """
    seed = _integer("seed", seed, SEED_LIMIT)
    first_index = _integer("first_index", first_index, SEED_LIMIT)
    num_samples = _integer("num_samples", num_samples, SEED_LIMIT)
    if dtype not in _NUMPY_DTYPES:
        raise NoiseError(f"dtype is {dtype}; noise is made in torch.float32 or torch.float64")
    size = math.prod(event_shape)
    counters = -(-size // _WORDS_PER_COUNTER)
    words = counters * _WORDS_PER_COUNTER
    generator = np.random.Philox(key=seed)
    generator.advance(first_index * counters)  # counts counters, not words

    out = np.empty((num_samples, size), dtype=_NUMPY_DTYPES[dtype])
    rows_at_once = max(1, _WORDS_AT_ONCE // max(1, words))
    for begin in range(0, num_samples, rows_at_once):
        end = min(begin + rows_at_once, num_samples)
        raw = generator.random_raw((end - begin) * words).reshape(end - begin, words)
        out[begin:end] = ndtri(_uniform(raw[:, :size]))
    return torch.from_numpy(out).reshape(num_samples, *event_shape)


def _uniform(words: np.ndarray) -> np.ndarray:
    """Map 64-bit words to float64 in (0, 1)."""
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    # The largest 53-bit word plus 1/2 rounds up to 2^53, whose quantile is infinite.
    return np.minimum(uniform, _BELOW_ONE)


def _integer(name: str, value: int, limit: int) -> int:
    """Return `value` as a Python integer in [0, limit), or raise a NoiseError that names it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise NoiseError(f"{name} is {value!r}; it must be an integer in [0, 2^63)") from None
    if not 0 <= number < limit:
        raise NoiseError(f"{name} is {number}; it must be in [0, 2^63)")
    return number
