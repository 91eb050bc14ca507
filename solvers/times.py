"""Times as people give them: when one stands for a point of a grid or an end of the span, and how errors print them.

Times come rounded: through float32, through half precision, as sums of 0.1. A time stands for a point

- that is no further away than float32 rounding: four ulps of float32 at the magnitude of the span, at most 1e-5 of its
  length (a span far from zero is not to lose the digits that float64 has there), or
- that rounds to it in the dtype that the times came in, where that is narrower than float64.

So 0.30000001192092896 (float32) and, in an array of half precision, 0.0999755859375 stand for 0.3 and 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.errors import SolverError

Times = NDArray[np.float64]
TimesSpec = Sequence[float] | NDArray[np.floating]

_ULPS = 4
_MOST_OF_SPAN = 1e-5


def as_times(name: str, values: Any) -> NDArray[np.floating]:
    """Times (M,) as an array of the dtype that they came in, float64 where that says nothing of their rounding.

    Raises:
        SolverError: for what is no list of finite numbers.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind in "iuO":
            array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(name, f"{name} must hold numbers, got {values!r}") from None
    if array.dtype.kind != "f" and array.size:
        raise SolverError(name, f"{name} must hold numbers, got {values!r}")
    if array.ndim != 1:
        raise SolverError(name, f"{name} must be a list of times, got {values!r}")
    for t in array[~np.isfinite(array)]:
        raise SolverError(name, f"{name} must hold finite times, got {t}")
    return array


def nearest(times: NDArray[np.floating], points: Times) -> Times:
    """The nearest point to each time (M,); the points (P,) are strictly monotone, in either direction."""
    ascending = points if points[0] < points[-1] else points[::-1]
    place = np.searchsorted(ascending, times.astype(np.float64)).clip(1, len(points) - 1)
    before, after = ascending[place - 1], ascending[place]
    return np.where(times - before <= after - times, before, after)


def stands_for(times: NDArray[np.floating], points: Times, t_span: tuple[float, float]) -> NDArray[np.bool_]:
    """(M,) whether each time stands for the point (M,) beside it, by the rule of this module."""
    start, end = t_span
    far = _ULPS * float(np.finfo(np.float32).eps) * max(abs(start), abs(end))
    close = np.abs(times.astype(np.float64) - points) <= min(far, _MOST_OF_SPAN * abs(end - start))
    if times.dtype.itemsize < points.dtype.itemsize:
        with np.errstate(over="ignore"):
            close |= points.astype(times.dtype) == times
    return close


def snapped(times: NDArray[np.floating], points: Sequence[float] | Times, t_span: tuple[float, float]) -> Times:
    """Times (M,) with those that stand for one of the points (P,), strictly monotone, replaced by it."""
    near = nearest(times, np.asarray(points, dtype=np.float64))
    return np.where(stands_for(times, near, t_span), near, times.astype(np.float64))


def apart(*times: float) -> list[str]:
    """Each time in six digits; in all that it takes where those do not tell times that differ apart."""
    texts = [f"{t:g}" for t in times]
    if len(set(texts)) < len(set(times)):
        texts = [repr(float(t)).removesuffix(".0") for t in times]
    return texts


def check_order(name: str, times: NDArray[np.floating], start: float, end: float) -> None:
    """Refuse times (M,) that do not move strictly from start to end.

    Raises:
        SolverError: naming the first two that do not.
    """
    wrong = np.flatnonzero(np.diff(times) * np.sign(end - start) <= 0)
    if len(wrong):
        k = int(wrong[0])
        a, b, first, last = apart(float(times[k]), float(times[k + 1]), start, end)
        raise SolverError(name, f"{name} must move strictly from {first} to {last}, but {b} follows {a}")
