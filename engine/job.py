"""Jobs: operations, the jobs given to the engine, their results, and the engine's exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray

from models.guidance import Guidance
from models.named_conditions import Distinct
from solvers.derived import DerivedField
from solvers.plan import Plan
from solvers.trace import Trace

Sizes = tuple[tuple[str, int], ...]
"""The sizes of a model's free axes, by name; jobs of equal sizes share network calls."""


@dataclass(frozen=True)
class Operation:
    """What an arena computes; the jobs of one operation of one model version share network calls.

    Whoever needs an operation makes it, once, and gives it to the engine with its jobs.

    Attributes:
        name: its name in metrics and workloads.
        field: shape of an event -> the field that the lanes follow (see `solvers.derived`); None for the velocity.
    """

    name: str
    field: Callable[[tuple[int, ...]], DerivedField] | None = None


SAMPLE = Operation("sample")
"""Lanes follow the velocity itself. Its arena is made when a model is loaded, others when they are first requested."""


class Priority(StrEnum):
    """Priority of a job; `bulk` yields to `interactive`, but is never left without a share of the device."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Overloaded(Exception):  # noqa: N818  (named for what it says, as the HTTP side reads it)
    """The queue is full, or the job could not be done in time.

    Attributes:
        retry_after_s: approximate seconds until the same job would be accepted.
    """

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.1f} s")
        self.reason, self.retry_after_s = reason, retry_after_s


class TooSlow(Exception):  # noqa: N818
    """The job could not be done by its deadline even with the machine to itself.

    Attributes:
        needed_s: approximate seconds that it would take then.
    """

    def __init__(self, needed_s: float) -> None:
        about = f"{float(f'{needed_s:.2g}'):,.12g}"  # never 1.7e+03
        super().__init__(f"this takes about {about} s even with the machine to itself")
        self.needed_s = needed_s


class TooManySamples(Exception):  # noqa: N818
    """The samples of the job share their steps, and do not fit into one part of the row budget.

    Attributes:
        samples, most: number of samples, and the most that fit.
    """

    def __init__(self, samples: int, most: int) -> None:
        super().__init__(
            f"num_samples = {samples} with error_control 'batch': samples that share their steps go through the "
            f"network in one call, at most {most} of this request; use at most {most}, or error_control 'sample'"
        )
        self.samples, self.most = samples, most


class Draining(Exception):  # noqa: N818
    """The engine accepts no more jobs."""


class DeadlineExceeded(Exception):  # noqa: N818
    """The job's deadline passed before its samples were done, or was certain to."""


class EngineFailed(Exception):  # noqa: N818
    """The job could not be solved: the network raised, or the engine ended."""


@dataclass(frozen=True, eq=False)
class Progress:
    """Progress of a running job.

    Attributes:
        nfe: largest number of calls that one of its samples has taken so far.
        t: the time reached by the sample furthest behind.
        share: mean share of the span that its samples have completed; never decreases.
        done: number of samples that have ended.
        queued: whether no sample has started yet.
        saved: as in `JobResult`, still being filled: every sample has its states at the first `complete` save times.
        complete: see `saved`.
    """

    nfe: int
    t: float
    share: float
    done: int
    queued: bool = False
    saved: torch.Tensor | None = None
    complete: int = 0


@dataclass(frozen=True, eq=False)
class Job:
    """A validated request, as the engine takes it.

    Attributes:
        model, version: a version loaded into the engine.
        solve: the compiled solver.
        num_samples: number of samples, at least 1.
        seed, first_index: choose the noise of the samples; not used if `x0` is given.
        noise_scale: a factor of that noise, its temperature.
        x0: (num_samples, *event) starting states, in the operation's own shape, or None for noise.
        save_at: (M,) float64 times to keep the states at, or None.
        deadline: when the job is given up, in seconds of the engine's clock (`time.monotonic`), or None.
        partial: at the deadline, answer with the states reached instead of failing.
        trace: `none`, `summary` or `full`.
        conditions: conditions of the samples, by the names of the model's inputs; None for the null of each.
        guidance: strength of classifier-free guidance, or all of its terms; None for no guidance.
        negative: conditions that replace the nulls in guidance, by name; None for none.
        sizes: sizes of the free axes of states and conditions.
        priority: see `Priority`.
        on_progress: called in the engine's thread, which it must not hold up; or None.
        progress_s: minimum seconds between two calls of `on_progress`.
        operation: the operation; all but `SAMPLE` need `x0`, and `Engine.prepare` before.
        on_logged: called in the engine's thread with the number of attempted steps under error control that are kept
            for the job's trace from now on; or None.
        follows: whether it is the second half of a request, so that it may lack time that its first half has used.
        constants: (num_samples, constants) of the operation's field, see `solvers.derived`; None if it has none.
        decode: whether the states are to be decoded by the model's decoder program; without one they are left as they
            are.
        variants: conditions of each variant (see `job_rows.variants_of`) as made by a prelude; None until then.
    """

    model: str
    version: int
    solve: Plan
    num_samples: int
    seed: int = 0
    first_index: int = 0
    noise_scale: float = 1.0
    x0: torch.Tensor | None = None
    save_at: NDArray[np.float64] | None = None
    deadline: float | None = None
    partial: bool = False
    trace: str = "summary"
    conditions: Mapping[str, Distinct] | None = None
    guidance: float | Guidance | None = None
    negative: Mapping[str, Distinct] | None = None
    sizes: Sizes = ()
    priority: Priority = Priority.INTERACTIVE
    on_progress: Callable[[Progress], None] | None = None
    progress_s: float = 0.1
    on_logged: Callable[[int], None] | None = None
    operation: Operation = SAMPLE
    constants: torch.Tensor | None = None
    follows: bool = False
    decode: bool = False
    variants: tuple[Mapping[str, Distinct], ...] | None = None


@dataclass(frozen=True, eq=False)
class JobResult:
    """The result of a job, on the CPU.

    Attributes:
        x: (n, *event) the states reached.
        saved: (n, M, *event) states at `save_at`, NaN where a sample did not get there; or None.
        t, nfe, status: (n,) the time reached, the calls, and a `Status` value for each sample.
        trace: every attempted step; for plans empty unless `full` is requested, as the grid says it all.
        rows: network rows spent on the job: one per call, or one for each term of its guidance.
        queue_s, solve_s, network_s: seconds waited, solved, and in network calls that the job took part in.
        prelude_s, decoder_s: seconds in calls of the model's prelude and decoder program that it took part in; None
            if it did not need one.
        data, saved_data: `x` and `saved` decoded, if the job asked for that; rows that are not finite are NaN.
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
    prelude_s: float | None = None
    decoder_s: float | None = None
    data: torch.Tensor | None = None
    saved_data: torch.Tensor | None = None


Outcome = JobResult | Exception | None
"""How a job ends: with a result, with an error, or cancelled (None)."""
