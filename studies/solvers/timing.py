"""Clocks and counters: time inside and outside a velocity, its calls and rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from torch import Tensor

from studies.solvers.problems import Field

clock = time.thread_time
"""CPU time of this thread: it excludes other work on the machine, and one thread does everything here."""


class Counted:
    """A velocity that counts its calls and rows and clocks itself."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.calls = self.rows = 0
        self.inside = 0.0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        begin = clock()
        v = self.field(x, t)
        self.inside += clock() - begin
        self.calls += 1
        self.rows += len(x)
        return v


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
