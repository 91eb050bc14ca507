"""Budget checks: a fraction of budgeted requests is solved again tightly, and the endpoint errors are counted.

A check is bulk work of at most 256 samples, one at a time; it is dropped if it would wait or another runs, and when
the service drains. The tight solution is DOPRI5 in the model's own dtype, so errors near its rounding are shown as is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from starlette.requests import Request

import solvers
from engine.job import Job, JobResult, Priority
from models.named_conditions import repeated
from service.errors import REFUSALS, ProblemError
from service.ledger import Hold, Ledger
from service.metrics import Metrics
from service.ports import Engine
from service.registry.version import Lease
from service.requests.budget import Choice
from service.requests.sizes import lanes_bytes
from service.requests.validation import Validated
from solvers import SolverSpec

MAX_SAMPLES = 256
LIMIT_S = 60.0
"""Time limit of a check in seconds, including the wait."""

_TIGHT = {torch.float64: 1e-10}
_TIGHT_NARROW = 1e-6  # near float32 rounding; a tighter one would only take longer


@dataclass
class BudgetChecks:
    """The budget checks of one service; used on its event loop.

    Attributes:
        fraction: share of responses to budgeted requests to check.
        engine, ledger, metrics: those of the service.
        lease: (name, version) -> an empty lease.
        draw: returns a random number in [0, 1).
    """

    fraction: float
    engine: Engine
    ledger: Ledger
    metrics: Metrics
    lease: Callable[[str, int], Lease]
    draw: Callable[[], float] = random.random
    _running: Future[JobResult] | None = None
    _stopped: bool = field(default=False)

    def consider(self, valid: Validated, result: JobResult) -> None:
        """Start a check of an answer if it is drawn and there is room; return at once."""
        if valid.choice is None or self._stopped or self.draw() >= self.fraction:
            return
        if self._running is not None:
            self.metrics.budget_checked("dropped")
            return
        hold: Hold | None = None
        lease: Lease | None = None
        try:
            lease = self.lease(valid.model.name, valid.model.version)
            if not lease.fill_now():
                self.metrics.budget_checked("dropped")
                return
            job = _tight(valid.job, valid.model.dtype)
            wanted = lanes_bytes(valid.model, job.num_samples, int(np.prod(valid.model.event_shape)))
            hold = self.ledger.take(wanted, job.deadline or 0.0)
            future = self.engine.submit(job)
        except (ProblemError, *REFUSALS):
            self.metrics.budget_checked("dropped")
            if hold is not None:
                hold.release()
            if lease is not None:
                lease.release()
            return
        self._running = future
        x = result.x[: job.num_samples].clone()
        ended = (result.status == "success")[: job.num_samples]
        choice, kept, held = valid.choice, hold, lease

        def done(future: Future[JobResult]) -> None:
            self._running = None
            kept.release()
            held.release()
            if future.cancelled() or future.exception() is not None:
                self.metrics.budget_checked("dropped")
            else:
                self._count(choice, x, ended, future.result())

        future.add_done_callback(done)

    def _count(self, choice: Choice, x: torch.Tensor, ended: np.ndarray, tight: JobResult) -> None:
        distance = (x.double() - tight.x.double()).flatten(1).square().sum(1).sqrt().numpy() / choice.curve.spread
        ratio = np.where(ended, distance, np.inf) / max(choice.point.error_95, np.finfo(np.float64).tiny)
        self.metrics.budget_errors(ratio[tight.status == "success"])
        self.metrics.budget_checked("done")

    def stop(self) -> None:
        """Start no more checks and cancel a running one, so that the service need not wait for it."""
        self._stopped = True
        if self._running is not None:
            self.engine.cancel(self._running)


def checks_of(request: Request) -> BudgetChecks:
    """Return the budget checks of the application that serves a request."""
    return request.app.state.budget_checks


def _tight(job: Job, dtype: torch.dtype) -> Job:
    """Return a job that solves the first samples of another one tightly, in this dtype."""
    n, tolerance = min(job.num_samples, MAX_SAMPLES), _TIGHT.get(dtype, _TIGHT_NARROW)
    spec = SolverSpec(rtol=tolerance, atol=tolerance, controller="i", max_nfe=100_000)
    return replace(
        job,
        solve=solvers.compile(spec, dtype),
        num_samples=n,
        conditions=repeated(job.conditions, np.arange(n)),
        save_at=None,
        trace="none",
        priority=Priority.BULK,
        deadline=time.monotonic() + LIMIT_S,
        partial=False,
        decode=False,
        on_progress=None,
        on_logged=None,
    )
