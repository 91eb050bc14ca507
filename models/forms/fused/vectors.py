"""Emitter of LLVM IR for vectors of 16 numbers, for use in Numba intrinsics.

LLVM splits a vector into as many registers as the processor needs (one with AVX-512, two with AVX2, four with NEON), so
the order of operations, and with it every bit, is the same on each. Fast-math is off: every operation is rounded as
written, and only `fma` emits a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16
"""Numbers in a vector."""

F32, F64, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
_DOUBLES, _INTEGERS = ir.VectorType(F64, LANES), ir.VectorType(I32, LANES)
_SUFFIX = {F32: "f32", VECTOR: f"v{LANES}f32", _DOUBLES: f"v{LANES}f64"}

# exp(r) on |r| <= ln(2) / 2 as 1 + r + r^2 p(r), and ln(2) in two parts: Cephes, `expf` (S. Moshier, 1992).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LN2_HIGH, _LN2_LOW, _LOG2_E = 0.693359375, -2.12194440e-4, 1.4426950408889634

# sin and cos on |r| <= pi / 4 by their Taylor series to r^11 and r^12: good to 1e-9, so the error of the
# float32 result is little more than its rounding. pi / 2 is in two parts (W. Cody & W. Waite, 1980).
_SIN = (-1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6)
_COS = (1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -1 / 2)
_HALF_PI_HIGH, _HALF_PI_LOW, _TWO_OVER_PI = 1.5707963267948966, 6.123233995736766e-17, 0.6366197723675814


def fill(value: float, kind: ir.VectorType = VECTOR) -> ir.Constant:
    """A vector with the same constant in all lanes."""
    return ir.Constant(kind, [value] * LANES)


class Emitter:
    """Appends vector operations to a function under construction; addresses are 64-bit integers, in bytes."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir = builder

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an intrinsic of LLVM, such as `fma` or `sqrt`."""
        kind = arguments[0].type
        declared = ir.FunctionType(kind, [kind] * len(arguments))
        function = cgutils.get_or_insert_function(self.ir.module, declared, f"llvm.{name}.{_SUFFIX[kind]}")
        return self.ir.call(function, arguments)

    def load(self, address: Any, vector: int = 0, kind: ir.Type = VECTOR) -> Any:
        """Load the vector at an address, or `vector` vectors after it, aligned as float32; or one number."""
        return self.ir.load(self._pointer(address, kind, 4 * LANES * vector), align=4)

    def store(self, value: Any, address: Any, vector: int = 0) -> None:
        """Write a vector to an address, or `vector` vectors after it."""
        self.ir.store(value, self._pointer(address, VECTOR, 4 * LANES * vector), align=4)

    def _pointer(self, address: Any, kind: ir.Type, offset: int) -> Any:
        return self.ir.inttoptr(self.ir.add(address, I64(offset)) if offset else address, kind.as_pointer())

    def splat(self, number: Any) -> Any:
        """A vector with one number in all lanes."""
        nothing = ir.Constant(VECTOR, ir.Undefined)
        first = self.ir.insert_element(nothing, number, I32(0))
        return self.ir.shuffle_vector(first, nothing, fill(0, _INTEGERS))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self.call("fma", a, b, c)

    def within(self, a: Any, least: float, most: float) -> Any:
        """The number clipped to bounds; NaN becomes a bound."""
        return self.call("minnum", self.call("maxnum", a, fill(least, a.type)), fill(most, a.type))

    def sum(self, vector: Any) -> Any:
        """The sum of the lanes, by adding halves."""
        width = LANES
        while width > 1:
            width //= 2
            upper = ir.Constant(_INTEGERS, [lane + width if lane < width else 0 for lane in range(LANES)])
            vector = self.ir.fadd(vector, self.ir.shuffle_vector(vector, vector, upper))
        return self.ir.extract_element(vector, I32(0))

    def first(self, count: Any) -> Any:
        """A mask of the first `count` lanes."""
        lane = ir.Constant(_INTEGERS, list(range(LANES)))
        nothing = ir.Constant(_INTEGERS, ir.Undefined)
        placed = self.ir.insert_element(nothing, self.ir.trunc(count, I32), I32(0))
        return self.ir.icmp_signed("<", lane, self.ir.shuffle_vector(placed, nothing, fill(0, _INTEGERS)))

    def loop(self, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run `body(i, values) -> values` for i = 0 .. count - 1; return the last values."""
        build = self.ir
        before = build.block
        head, inside, after = (build.append_basic_block(name) for name in ("head", "inside", "after"))
        build.branch(head)
        build.position_at_end(head)
        index = build.phi(I64)
        index.add_incoming(I64(0), before)
        values = [build.phi(value.type) for value in start]
        for phi, value in zip(values, start, strict=True):
            phi.add_incoming(value, before)
        build.cbranch(build.icmp_signed("<", index, count), inside, after)
        build.position_at_end(inside)
        new = body(index, values)
        index.add_incoming(build.add(index, I64(1)), build.block)
        for phi, value in zip(values, new, strict=True):
            phi.add_incoming(value, build.block)
        build.branch(head)
        build.position_at_end(after)
        return values

    def silu(self, x: Any) -> Any:
        """x / (1 + exp(-x))."""
        build = self.ir
        y = self.within(self.ir.fneg(x), -87.0, 88.0)  # its exp is finite and not denormal
        whole = self.call("rint", build.fmul(y, fill(_LOG2_E)))
        remainder = self.fma(self.ir.fneg(whole), fill(_LN2_HIGH), y)
        remainder = self.fma(self.ir.fneg(whole), fill(_LN2_LOW), remainder)
        part = self._polynomial(_EXP, remainder, VECTOR)
        mantissa = build.fadd(self.fma(part, build.fmul(remainder, remainder), remainder), fill(1.0))
        exponent = build.add(build.fptosi(whole, _INTEGERS), fill(127, _INTEGERS))
        power = build.bitcast(build.shl(exponent, fill(23, _INTEGERS)), VECTOR)
        return build.fdiv(x, build.fadd(fill(1.0), build.fmul(mantissa, power)))

    def sine_and_cosine(self, angle: Any) -> tuple[Any, Any]:
        """Sine and cosine of angles in radians up to about 1e8, computed in float64."""
        build = self.ir
        x = build.fpext(angle, _DOUBLES)
        quarter = self.call("rint", build.fmul(x, fill(_TWO_OVER_PI, _DOUBLES)))
        remainder = self.fma(self.ir.fneg(quarter), fill(_HALF_PI_HIGH, _DOUBLES), x)
        remainder = self.fma(self.ir.fneg(quarter), fill(_HALF_PI_LOW, _DOUBLES), remainder)
        square = build.fmul(remainder, remainder)
        sine = self.fma(build.fmul(self._polynomial(_SIN, square, _DOUBLES), square), remainder, remainder)
        cosine = self.fma(self._polynomial(_COS, square, _DOUBLES), square, fill(1.0, _DOUBLES))
        sine, cosine = build.fptrunc(sine, VECTOR), build.fptrunc(cosine, VECTOR)
        turn = build.fptosi(self.within(quarter, -(2.0**30), 2.0**30), _INTEGERS)
        odd = build.icmp_signed("!=", build.and_(turn, fill(1, _INTEGERS)), fill(0, _INTEGERS))
        after = build.add(turn, fill(1, _INTEGERS))
        return (
            self._signed(build.select(odd, cosine, sine), turn),
            self._signed(build.select(odd, sine, cosine), after),
        )

    def _signed(self, value: Any, turn: Any) -> Any:
        """The value, or its negative in the third and fourth quarter of a turn."""
        build = self.ir
        sign = build.shl(build.and_(turn, fill(2, _INTEGERS)), fill(30, _INTEGERS))
        return build.bitcast(build.xor(build.bitcast(value, _INTEGERS), sign), VECTOR)

    def _polynomial(self, coefficients: Sequence[float], x: Any, kind: ir.VectorType) -> Any:
        """The polynomial by Horner's rule, with the coefficient of the highest power first."""
        result: Any = fill(coefficients[0], kind)
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, fill(coefficient, kind))
        return result
