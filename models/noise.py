"""Random numbers with random access: the starting noise and the Rademacher probes of sample i of a seed.

Scheme `philox-ndtri-v1`: a sample of D numbers owns ceil(D / 4) counters of NumPy's `Philox(key=seed)`, each worth four
64-bit words u (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its noise is the normal quantile
of ((u >> 11) + 1/2) / 2^53, in float64, cast to the model's dtype. A rejection sampler would use a varying number of
words, and sample i would depend on those before it.

Scheme `philox-ndtri-free-v1` is for states with free axes. Sample i owns the 2^40 counters from i 2^40 on, whatever its
shape, and its numbers are taken along the free axes first: of two samples with the same seed and index, and one free
axis, the noise of the longer begins with that of the shorter. Samples with different indices have no words in common,
whatever their shapes are.

Scheme `philox-ndtri-centred-v1` is for equivariant networks of point clouds: the noise of one of these schemes less its
mean along one axis, that of the points. It is standard normal on the states whose mean is zero (Hoogeboom et al.,
"Equivariant diffusion for molecule generation in 3D", 2022, section 3.1).

Probes are for estimates of a divergence. Philox takes a key of 128 bits: the seed is its lower half, as for noise,
and 1 + the number of the probe its upper half, so they are independent of the noise of the same seed. A sample of D
numbers owns ceil(D / 256) counters, one bit for each number.
"""

import math
import operator
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from solvers.draws import uniforms
from solvers.kernels_torch import lane_sums

SCHEME = "philox-ndtri-v1"
"""The name of this scheme in cards and responses; any other way of making noise needs another name."""

FREE_SCHEME = "philox-ndtri-free-v1"
"""The name of the scheme for states with free axes."""

CENTRED_SCHEME = "philox-ndtri-centred-v1"
"""The name of the scheme whose mean along an axis is zero."""

SEED_LIMIT = 1 << 63
"""Seeds are integers in [0, SEED_LIMIT)."""

_FREE_COUNTERS = 1 << 40  # counters of one sample
_WORDS_PER_COUNTER = 4
_BITS_PER_COUNTER = 256
_NUMBERS_AT_ONCE = 1 << 20  # bounds the float64 temporaries at 8 MiB
_NUMPY_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def noise(
    seed: int,
    first_index: int,
    num_samples: int,
    event_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    free: Sequence[int] = (),
    centred: int | None = None,
) -> Tensor:
    """Make the noise of samples `first_index` ... `first_index + num_samples - 1` of a seed, on the CPU.

    Args:
        seed: an integer in [0, 2^63).
        first_index: index of the first sample, in [0, 2^63).
        num_samples: the number of samples, at least 0.
        event_shape: shape of one sample.
        dtype: float32 or float64; the numbers are made in float64 and then cast.
        free: the places of the free axes in the shape.
        centred: the place of the axis along which the mean is subtracted; None for none.

    Returns:
        Standard normal numbers, (num_samples, *event_shape). Row j depends on seed and first_index + j only.

    Raises:
        ValueError: an argument is outside these ranges.
    """
    if dtype not in _NUMPY_DTYPES:
        raise ValueError(f"dtype is {dtype}; noise is made in torch.float32 or torch.float64")
    block = _integer("seed", seed), _integer("first_index", first_index), _integer("num_samples", num_samples)
    return noise_of([block], event_shape, dtype, free, centred)


def noise_of(
    blocks: Sequence[tuple[int, int, int]],
    event_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    free: Sequence[int] = (),
    centred: int | None = None,
) -> Tensor:
    """Make the noise of blocks in turn: (seed, first index, number of samples), in the ranges that `noise` checks."""
    size, total = math.prod(event_shape), sum([count for _, _, count in blocks])
    apart = _FREE_COUNTERS if free else -(-size // _WORDS_PER_COUNTER)
    out, at_once = np.empty((total, size), dtype=_NUMPY_DTYPES[dtype]), max(1, _NUMBERS_AT_ONCE // max(1, size))
    for begin in range(0, total, at_once):
        part = out[begin : begin + at_once]
        uniform = np.empty(part.shape)
        uniforms(np.array(blocks), apart, begin, uniform)
        ndtri(uniform, out=part, casting="same_kind")
    order = [*free, *(place for place in range(len(event_shape)) if place not in free)]
    x = torch.from_numpy(out).reshape(total, *(event_shape[place] for place in order))
    if free:
        x = x.permute(0, *(1 + order.index(place) for place in range(len(order)))).contiguous()
    return x if centred is None else x - mean_along(x, centred).to(dtype)


def mean_along(x: Tensor, place: int) -> Tensor:
    """Return the mean of states (rows, *event) along an axis of the event, (rows, ..., 1, ...) in float64.

    It is summed in an order that does not depend on the number of rows.
    """
    moved = x.double().movedim(1 + place, -1).contiguous()
    sums = torch.from_numpy(lane_sums(moved.reshape(-1, moved.shape[-1]).clone()))
    return (sums / moved.shape[-1]).reshape(*moved.shape[:-1], 1).movedim(-1, 1 + place)


def noise_places(event_shape: tuple[int, ...], free: Sequence[int]) -> NDArray[np.int64]:
    """Return the place in a state (D,) of each number in the order in which it is drawn; empty if there is one order.

    Args:
        event_shape: shape of one sample.
        free: the places of the free axes in the shape, which come first.
    """
    if not free:
        return np.zeros(0, dtype=np.int64)
    order = [*free, *(place for place in range(len(event_shape)) if place not in free)]
    return np.arange(math.prod(event_shape)).reshape(event_shape).transpose(order).ravel()


def rademacher(
    seed: int, probe: int, first_index: int, num_samples: int, event_shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Make Rademacher probes on the CPU: vectors of independent entries, 1 or -1 with equal probability.

    Args:
        seed: an integer in [0, 2^63).
        probe: which of the sample's probes, counted from 0.
        first_index: index of the first sample, in [0, 2^63).
        num_samples: the number of samples.
        event_shape: shape of one sample.
        dtype: dtype of the probes.

    Returns:
        (num_samples, *event_shape); row j depends on seed, probe and first_index + j only.
    """
    size = math.prod(event_shape)
    counters = -(-size // _BITS_PER_COUNTER)
    generator = np.random.Philox(key=seed + ((probe + 1) << 64))
    generator.advance(first_index * counters)
    words = generator.random_raw(num_samples * counters * 4).astype("<u8", copy=False)
    bits = np.unpackbits(words.view(np.uint8).reshape(num_samples, -1), axis=1, count=size, bitorder="little")
    return (torch.from_numpy(bits).to(dtype) * 2 - 1).reshape(num_samples, *event_shape)


def _integer(name: str, value: int) -> int:
    """Return `value` as a Python integer in [0, 2^63), or raise a ValueError that names it."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < SEED_LIMIT:
        raise ValueError(f"{name} is {value!r}; it must be an integer in [0, 2^63)")
    return number
