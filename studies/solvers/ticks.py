"""A tick of 1,000 one-sample requests with mixed solvers compared with a tick of one 1,000-sample request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from solvers import resolve
from solvers.lanes import Admission, Lanes
from studies.solvers.overhead import network
from studies.solvers.timing import clock, median

MIX: tuple[dict[str, Any], ...] = (
    {"solver": "euler", "steps": 240},
    {"solver": "heun2", "steps": 120},
    {"solver": "rk4", "steps": 60},
    {"solver": "ab3", "steps": 240},
    {"solver": "dopri5", "rtol": 1e-7, "atol": 1e-7, "first_step": 1e-3},
    {"solver": "tsit5", "rtol": 1e-7, "atol": 1e-7, "first_step": 1e-3},
)
JOBS, TICKS = 1000, 48


@dataclass(frozen=True)
class Tick:
    """Milliseconds per tick: the mean over `TICKS` ticks, the median over repetitions."""

    name: str
    lanes: float
    network: float

    @property
    def total(self) -> float:
        return self.lanes + self.network


def _profile(admissions: list[Admission], field: Callable[[Tensor, Tensor], Tensor]) -> tuple[float, float]:
    lanes = Lanes((2,))
    lanes.admit(admissions)
    outside = inside = 0.0
    for _ in range(TICKS):
        begin = clock()
        x, t = lanes.query()
        called = clock()
        v = field(x, t)
        returned = clock()
        lanes.absorb(v)
        outside += clock() - returned + called - begin
        inside += returned - called
    assert len(lanes) == JOBS, "a lane ended: the ticks are not alike"
    return 1000 * outside / TICKS, 1000 * inside / TICKS


def measure(repetitions: int) -> list[Tick]:
    """Measure the mix, and each of its solvers as one request for all samples, in turn."""
    module = network()
    x0 = torch.randn(JOBS, 2, generator=torch.Generator().manual_seed(0))
    solves = [resolve(**request) for request in MIX]
    kinds = {"1,000 requests, mixed": [Admission(solves[k % len(MIX)], x0[k : k + 1], owner=k) for k in range(JOBS)]}
    kinds |= {f"1 request, {solve.settings['name']}": [Admission(solve, x0)] for solve in solves}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    with torch.no_grad():
        for _ in range(repetitions):
            for name, admissions in kinds.items():
                found[name].append(_profile(admissions, module))
    return [Tick(name, median([o for o, _ in times]), median([i for _, i in times])) for name, times in found.items()]
