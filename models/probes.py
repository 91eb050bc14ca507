"""Random signs for estimates of a divergence: those of sample i do not depend on how many samples there are.

NumPy's `Philox` takes a key of 128 bits. The seed is its lower half, as for noise (`models.noise`), and 1 + the number
of the probe its upper half, so that signs are independent of the noise of the same seed. A sample of D numbers owns
ceil(D / 256) counters of four 64-bit words, one bit a number.
"""

import math

import numpy as np
import torch
from torch import Tensor

_BITS = 256  # of a counter


def signs(
    seed: int, probe: int, first_index: int, num_samples: int, event_shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Make signs, 1 or -1 with the same probability, on the CPU.

    Args:
        seed: an integer in [0, 2^63).
        probe: which of the sample's random vectors, from 0.
        first_index: index of the first sample, in [0, 2^63).
        num_samples: how many samples.
        event_shape: shape of one sample.
        dtype: of the answer.

    Returns:
        (num_samples, *event_shape); row j depends on seed, probe and first_index + j only.
    """
    size = math.prod(event_shape)
    counters = -(-size // _BITS)
    generator = np.random.Philox(key=seed + ((probe + 1) << 64))
    generator.advance(first_index * counters)
    words = generator.random_raw(num_samples * counters * 4).astype("<u8", copy=False)
    bits = np.unpackbits(words.view(np.uint8).reshape(num_samples, -1), axis=1, count=size, bitorder="little")
    return (torch.from_numpy(bits).to(dtype) * 2 - 1).reshape(num_samples, *event_shape)
