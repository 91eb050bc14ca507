"""The layers of a fused network as Numba intrinsics: a tile of a matrix product, LayerNorm, SiLU, time embedding.

All take addresses of float32 numbers. Rows of activations are `stride` numbers apart, and padded with zeros to a
multiple of 16 numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import llvmlite.binding as llvm
from numba import extending, types

from models.forms.fused.vectors import F32, I64, LANES, Emitter, fill

BYTES = 4
PANEL = BYTES * LANES
"""Bytes of one vector, and of one row of a panel of weights."""

PARTIAL = 64
"""Terms of a product in one partial sum; a single chain of all terms would double the error."""

BIAS, BIAS_AND_OLD, OLD = 0, 1, 2
"""The starting value of a tile's sums: the bias, the bias and the old value, or the old value."""

_SHAPES = {6: 1, 4: 1, 3: 1, 2: 2, 1: 4}
if "+avx512f" in (os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()).split(","):
    _SHAPES = {12: 2, 6: 4, 4: 4, 3: 4, 2: 4, 1: 4}

HEIGHTS, WIDTHS = tuple(_SHAPES), tuple(_SHAPES.values())
"""Rows of the tiles, the tallest first, and panels of each: enough sums to keep the processor busy, and as many as its
registers hold, so that few loads serve many products."""


# An intrinsic is defined with a typing context as first argument, which callers do not pass.
intrinsic = cast("Callable[[Callable[..., Any]], Callable[..., None]]", extending.intrinsic)


@intrinsic
def tile(
    typing: Any,
    rows: Any,
    panels: Any,
    a: Any,
    a_stride: Any,
    b: Any,
    panel: Any,
    terms: Any,
    bias: Any,
    c: Any,
    c_stride: Any,
    to: Any,
) -> Any:
    """Compute a tile of C = A B, `rows` x 16 `panels` numbers: a height in `HEIGHTS`, and its width or one panel.

    Each number of C is one chain of additions: its starting value, then sums of 64 products, each a chain of fused
    multiply-adds from zero. The shape of the tile does not change that, so no bit depends on the number of rows.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        height_at, width_at, *operands = arguments
        for height, most in _SHAPES.items():
            for width in sorted({1, most}):
                same = build.icmp_signed("==", height_at, I64(height))
                with build.if_then(build.and_(same, build.icmp_signed("==", width_at, I64(width)))):
                    _tile(build, height, width, operands)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), generate


def _tile(build: Any, rows: int, panels: int, operands: Sequence[Any]) -> None:
    a, a_stride, b, panel, terms, bias, c, c_stride, to = operands
    emit = Emitter(build)
    in_a, in_c = _addresses(build, a, a_stride, rows), _addresses(build, c, c_stride, rows)
    in_b = _addresses(build, b, panel, panels)
    places = [(row, column) for row in range(rows) for column in range(panels)]

    with build.if_then(build.icmp_signed("==", to, I64(BIAS))):
        for row, column in places:
            emit.store(emit.load(bias, column), in_c[row], column)
    with build.if_then(build.icmp_signed("==", to, I64(BIAS_AND_OLD))):
        for row, column in places:
            emit.store(build.fadd(emit.load(in_c[row], column), emit.load(bias, column)), in_c[row], column)

    def partial(index: Any, _: list[Any]) -> list[Any]:
        begin = build.mul(index, I64(PARTIAL))
        left = build.sub(terms, begin)
        count = build.select(build.icmp_signed("<", left, I64(PARTIAL)), left, I64(PARTIAL))

        def term(index: Any, sums: list[Any]) -> list[Any]:
            k = build.add(begin, index)
            weights = [emit.load(build.add(start, build.mul(k, I64(PANEL)))) for start in in_b]
            new = []
            for row in range(rows):
                factor = emit.splat(emit.load(build.add(in_a[row], build.mul(k, I64(BYTES))), kind=F32))
                new += [emit.fma(factor, weights[column], sums[row * panels + column]) for column in range(panels)]
            return new

        sums = emit.loop(count, [fill(0.0)] * len(places), term)
        for (row, column), total in zip(places, sums, strict=True):
            emit.store(build.fadd(emit.load(in_c[row], column), total), in_c[row], column)
        return []

    emit.loop(build.sdiv(build.add(terms, I64(PARTIAL - 1)), I64(PARTIAL)), [], partial)


def _addresses(build: Any, first: Any, stride: Any, count: int) -> list[Any]:
    addresses = [first]
    for _ in range(count - 1):
        addresses.append(build.add(addresses[-1], stride))
    return addresses


@intrinsic
def normalise(typing: Any, x: Any, length: Any, scale: Any, shift: Any, epsilon: Any, out: Any) -> Any:
    """LayerNorm of one row of `length` numbers; the padding of `out` becomes that of `shift`, which is zero."""
    number, address = types.float32, types.int64
    return types.void(address, address, address, address, number, address), _normalise


def _normalise(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
    x, length, scale, shift, epsilon, out = arguments
    emit = Emitter(build)
    steps = build.sdiv(build.add(length, I64(LANES - 1)), I64(LANES))
    count = build.sitofp(length, F32)

    def at(start: Any, index: Any) -> Any:
        return build.add(start, build.mul(index, I64(PANEL)))

    def mean_of(term: Callable[[Any], Any]) -> Any:
        """Return the mean of a term over the numbers of the row; its padding counts as zero."""

        def add(index: Any, sums: list[Any]) -> list[Any]:
            inside = emit.first(build.sub(length, build.mul(index, I64(LANES))))
            return [build.fadd(sums[0], build.select(inside, term(emit.load(at(x, index))), fill(0.0)))]

        return build.fdiv(emit.sum(emit.loop(steps, [fill(0.0)], add)[0]), count)

    mean = emit.splat(mean_of(lambda value: value))

    def squared(value: Any) -> Any:
        distance = build.fsub(value, mean)
        return build.fmul(distance, distance)

    deviation = emit.call("sqrt", build.fadd(mean_of(squared), epsilon))
    factor = emit.splat(build.fdiv(F32(1.0), deviation))

    def write(index: Any, _: list[Any]) -> list[Any]:
        value = build.fmul(build.fsub(emit.load(at(x, index)), mean), factor)
        emit.store(emit.fma(value, emit.load(at(scale, index)), emit.load(at(shift, index))), at(out, index))
        return []

    emit.loop(steps, [], write)
    return context.get_dummy_value()


@intrinsic
def silu(typing: Any, x: Any, length: Any) -> Any:
    """SiLU in place of `length` numbers, a multiple of 16."""

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter(build)

        def step(index: Any, _: list[Any]) -> list[Any]:
            address = build.add(arguments[0], build.mul(index, I64(PANEL)))
            emit.store(emit.silu(emit.load(address)), address)
            return []

        emit.loop(build.sdiv(arguments[1], I64(LANES)), [], step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def sinusoids(typing: Any, t: Any, frequencies: Any, half: Any, sines: Any, cosines: Any) -> Any:
    """Sines and cosines of t times `half` frequencies; the three arrays are padded to a multiple of 16."""

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        t, frequencies, half, sines, cosines = arguments
        emit = Emitter(build)
        time = emit.splat(t)

        def step(index: Any, _: list[Any]) -> list[Any]:
            offset = build.mul(index, I64(PANEL))
            angle = build.fmul(time, emit.load(build.add(frequencies, offset)))
            for value, start in zip(emit.sine_and_cosine(angle), (sines, cosines), strict=True):
                emit.store(value, build.add(start, offset))
            return []

        emit.loop(build.sdiv(build.add(half, I64(LANES - 1)), I64(LANES)), [], step)
        return context.get_dummy_value()

    address = types.int64
    return types.void(types.float32, address, address, address, address), generate
