"""The noise of the steps of stochastic samplers, with random access: z depends on (seed, index, step) alone.

Scheme `philox-as241-v1`: numbers 4 k ... 4 k + 3 of z come from the four 64-bit words u of Philox4x64-10 (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) for the key (seed, 2^63) and the counter (1 + k, index,
step, 0): the words of NumPy's `Philox` with that key, from its counter (0, index, step, 0) on. Each number is the
normal quantile of ((u >> 11) + 1/2) / 2^53 in float64, by algorithm AS 241 (Wichura 1988, PPND16), cast to the dtype of
the states. No key is one of starting noise or probes (see `models.noise`), and no two (index, step) share a counter.

The numbers of states with free axes are taken along these first, as those of starting noise are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from solvers.compiled import Index, Numbers, Records, compiled

SCHEME = "philox-as241-v1"
"""The name of this scheme, in responses the member `step_noise`; any other way of drawing needs another name."""

_STREAM = np.uint64(1 << 63)
_FACTOR_0, _FACTOR_1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_BUMP_0, _BUMP_1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ZERO, _ELEVEN = np.uint64(0), np.uint64(11)
_BELOW_ONE = 1.0 - 2.0**-53
_BELOW_HALF = 0.425  # AS 241 has one rational function for |p - 1/2| up to this, and two for the tails


@intrinsic
def _high(typing_context: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of the product of two 64-bit words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@compiled
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return the four words of a counter under a key; all arguments are uint64."""
    for _ in range(10):
        high0, high1 = _high(_FACTOR_0, c0), _high(_FACTOR_1, c2)  # pyright: ignore[reportCallIssue]  (Numba's context)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, _FACTOR_1 * c2, high0 ^ c3 ^ k1, _FACTOR_0 * c0
        k0, k1 = k0 + _BUMP_0, k1 + _BUMP_1
    return c0, c1, c2, c3


@compiled
def uniform(word: Any) -> float:
    """The number in (0, 1) that a word (uint64) stands for."""
    return min((np.float64(word >> _ELEVEN) + 0.5) * 2.0**-53, _BELOW_ONE)  # the largest word would round up to 1


@compiled
def uniforms(blocks: Index, apart: int, begin: int, out: Numbers) -> None:
    """Write uniforms of samples, those of all blocks one after the other, from the one at `begin` on.

    Sample i of a seed has the words of NumPy's `Philox(key=seed)` after `advance(i * apart)`.

    Args:
        blocks: (B, 3) seed, index of the first sample and number of samples.
        apart: counters from one sample to the next.
        begin: how many samples come before.
        out: (n, D) one row for each sample.
    """
    row = 0
    for block in range(len(blocks)):
        seed, count = np.uint64(blocks[block, 0]), blocks[block, 2]
        for sample in range(min(begin, count), count):
            if row == len(out):
                return
            index = np.uint64(blocks[block, 1]) + np.uint64(sample)
            low, high = index * np.uint64(apart), _high(index, np.uint64(apart))  # pyright: ignore[reportCallIssue]
            for first in range(0, out.shape[1], 4):
                counter = low + np.uint64(first // 4 + 1)
                words = philox(counter, high + np.uint64(counter < low), _ZERO, _ZERO, seed, _ZERO)
                for k in range(min(4, out.shape[1] - first)):
                    out[row, first + k] = uniform(words[k])
            row += 1
        begin -= min(begin, count)


@compiled
def _ratio(r: float, above: Any, below: Any) -> float:
    """The quotient of two polynomials, highest power first; the constant of the lower one is 1."""
    p, q = 0.0, 0.0
    for k in range(len(above)):
        p = p * r + above[k]
        q = q * r + below[k]
    return p / q


_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip


@compiled
def quantile(word: Any) -> float:
    """The standard normal quantile that a word (uint64) stands for."""
    p = uniform(word)
    q = p - 0.5
    if abs(q) <= _BELOW_HALF:
        return q * _ratio(_BELOW_HALF * _BELOW_HALF - q * q, _CENTRE[0], _CENTRE[1])
    r = math.sqrt(-math.log(p if q < 0 else 1.0 - p))
    z = _ratio(r - 1.6, _TAIL[0], _TAIL[1]) if r <= 5.0 else _ratio(r - 5.0, _FAR[0], _FAR[1])
    return -z if q < 0 else z


@compiled
def four_normals(seed: int, index: int, step: int, block: int) -> Any:
    """Return the numbers 4 block ... 4 block + 3 of z."""
    counter = np.uint64(block + 1), np.uint64(index), np.uint64(step)
    words = philox(counter[0], counter[1], counter[2], _ZERO, np.uint64(seed), _STREAM)
    return quantile(words[0]), quantile(words[1]), quantile(words[2]), quantile(words[3])


@compiled
def stir(out: Any, x: Any, of_x: float, of_z: float, seed: int, index: int, step: int, order: Index) -> None:
    """Add of_x x + of_z z to out (D,), number by number.

    Args:
        out, x: (D,) sums and a state.
        of_x, of_z: weights; they and z are rounded to the dtype of the state first.
        seed, index, step: choose z.
        order: (D,) the place in the state of each number of z; empty if they are in the same order.
    """
    number = out.dtype.type
    of_x, of_z = number(of_x), number(of_z)
    for block in range((len(out) + 3) // 4):
        z = four_normals(seed, index, step, block)
        for k in range(4):
            d = 4 * block + k
            if d < len(out):
                d = order[d] if len(order) else d
                out[d] = (out[d] + of_x * x[d]) + of_z * number(z[k])


@compiled
def noise_of(lanes: Records, index: Index, order: Index, out: Any) -> None:
    """Write z of the running steps of lanes `index` (m,) into out (m, D), in the order of their states."""
    for m in range(len(index)):
        lane = lanes[index[m]]
        out[m] = 0.0
        stir(out[m], out[m], 0.0, 1.0, lane.seed, lane.sample, lane.step - lane.first - 1, order)


@compiled
def normals(seed: int, index: int, out: Numbers) -> None:
    """Write z of steps 0, 1, ... of a sample into out (steps, D), in the order in which it is drawn."""
    for step in range(len(out)):
        out[step] = 0.0
        stir(out[step], out[step], 0.0, 1.0, seed, index, step, np.empty(0, dtype=np.int64))
