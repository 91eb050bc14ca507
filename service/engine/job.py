"""One request as the engine sees it, what comes back, and how it can fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from solvers.plan import Adaptive, Plan
from solvers.trace import Trace


class Overloaded(Exception):  # noqa: N818  (named for what it says, as the HTTP side reads it)
    """The queue is full.

    Attributes:
        retry_after_s: about how long until the same job would be taken.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class Draining(Exception):  # noqa: N818
    """The engine takes no more jobs."""


class DeadlineExceeded(Exception):  # noqa: N818
    """The job's deadline passed before its samples were done."""


class EngineFailed(Exception):  # noqa: N818
    """The job could not be solved: the network raised, or the engine ended."""


@dataclass(frozen=True, eq=False)
class Job:
    """What a request asks of the engine; checked already.

    Attributes:
        model, version: a version that was loaded into the engine.
        solve: the compiled solver.
        num_samples: how many samples, at least 1.
        seed, first_index: where their noise comes from; not used where `x0` is given.
        x0: (num_samples, *event) starting states, or None for noise.
        save_at: (M,) float64 times to keep the states at, or None.
        deadline: `time.monotonic()` at which the job is given up, or None.
        partial: at the deadline, answer with the states reached instead of failing.
        trace: `none`, `summary` or `full`.
    """

    model: str
    version: int
    solve: Plan | Adaptive
    num_samples: int
    seed: int = 0
    first_index: int = 0
    x0: torch.Tensor | None = None
    save_at: NDArray[np.float64] | None = None
    deadline: float | None = None
    partial: bool = False
    trace: str = "summary"


@dataclass(frozen=True, eq=False)
class JobResult:
    """What a job comes to; everything lies on the CPU.

    Attributes:
        x: (n, *event) the states reached.
        saved: (n, M, *event) states at `save_at`, NaN where a sample did not get there; or None.
        t, nfe, status: (n,) the time reached, the calls, and a `Status` value for each sample.
        trace: every attempted step; for plans empty unless `full` is asked for, as the grid says it all.
        rows: network rows spent on the job.
        queue_s, solve_s, network_s: seconds waited, solved, and in network calls that the job took part in.
    """

    x: torch.Tensor
    saved: torch.Tensor | None
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    status: NDArray[np.str_]
    trace: Trace
    rows: int
    queue_s: float
    solve_s: float
    network_s: float
