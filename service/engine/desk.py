"""The jobs in hand: whose future is whose, when they are due, and how their results get to those who wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

import numpy as np

from service.engine.contracts import Observer
from service.engine.job import DeadlineExceeded, EngineFailed, JobResult
from service.engine.model import Model
from solvers.errors import Status
from solvers.lanes import Finished


class Desk:
    """All jobs of the engine, by future; used by the engine's thread but for `where`.

    Attributes:
        where: model and number of each job. Threads that submit add to it; the engine's thread takes out.
        next_deadline: the soonest of all, a time of the clock.
    """

    def __init__(self, observer: Observer | None, clock: Callable[[], float]) -> None:
        self.where: dict[Future[JobResult], tuple[Model, int]] = {}
        self._observer, self._clock = observer, clock
        self._deadlines: dict[int, tuple[float, Model]] = {}
        self.next_deadline = float("inf")
        self._beside = ThreadPoolExecutor(1, "pathline-results")

    def close(self, reason: Exception) -> None:
        """Whoever still waits gets the reason."""
        self._beside.shutdown()
        for future in list(self.where):
            self.settle(future, reason)

    def due(self, number: int, deadline: float, model: Model) -> None:
        """A job has a deadline, a time of the clock."""
        self._deadlines[number] = (deadline, model)
        self.next_deadline = min(self.next_deadline, deadline)

    def deliver(self, model: Model, ended: Sequence[Finished]) -> None:
        """Give what has ended, and what was saved, to the jobs it belongs to."""
        self.keep_saved(model)
        for finished in ended:
            self._deliver(model, finished)

    def _deliver(self, model: Model, finished: Finished) -> None:
        # Lanes that were admitted together stand together, so their share is a slice.
        edges = np.flatnonzero(np.diff(finished.owner)) + 1
        attempts = np.concatenate([[0], np.cumsum(finished.attempts)])
        for first, last in zip([0, *edges], [*edges, len(finished.owner)], strict=True):
            number = int(finished.owner[first])
            if number not in model.jobs:
                self._count_cancelled(finished, slice(first, last))
                continue
            assembly = model.jobs[number].assembly
            assembly.take(finished, slice(first, last), slice(int(attempts[first]), int(attempts[last])))
            if model.schedulers[assembly.job.priority].ended(number, int(last - first)):
                self._complete(model, number)

    def keep_saved(self, model: Model) -> None:
        """Give states at save times to the jobs that asked for them."""
        for saved in model.arena.take_saved():
            for number in np.unique(saved.owner):
                if int(number) in model.jobs:
                    model.jobs[int(number)].assembly.keep(saved, saved.owner == number)

    def _complete(self, model: Model, number: int) -> None:
        assembly = model.jobs[number].assembly
        if assembly.job.solve.adaptive and (spent := assembly.spent()) is not None:
            model.costs.learn(assembly.job, *spent)
        future, network_s = self.forget(model, number), model.arena.network.seconds
        if not assembly.large:
            self.settle(future, assembly.result(network_s, model.arena.start_of))
            return

        def finish() -> None:
            try:
                self.settle(future, assembly.result(network_s, model.arena.start_of))
            except Exception as error:
                self.settle(future, EngineFailed(f"{type(error).__name__}: {error}"))

        self._beside.submit(finish)

    def expire(self) -> None:
        """End the jobs whose deadline has passed."""
        now = self._clock()
        if now < self.next_deadline:
            return
        for number in [number for number, (deadline, _) in self._deadlines.items() if deadline <= now]:
            self._end_late(number, self._deadlines[number][1])
        self.next_deadline = min((deadline for deadline, _ in self._deadlines.values()), default=float("inf"))

    def _end_late(self, number: int, model: Model) -> None:
        running = model.jobs[number]
        job, scheduler = running.job, model.schedulers[running.job.priority]
        if not job.partial:
            self.abandon(running.future, DeadlineExceeded())
            return
        waiting = scheduler.first_waiting(number)
        if waiting < job.num_samples:
            running.assembly.unstarted(waiting, Status.DEADLINE)
            scheduler.drop_waiting(number)
        self.deliver(model, model.arena.stop(number, Status.DEADLINE, job.priority))
        if number in model.jobs:  # nothing of it ran
            self._complete(model, number)

    def abandon(self, future: Future[JobResult], reason: Exception | None = None) -> None:
        """End a job that nobody waits for any more, or for a reason that whoever waits is told."""
        model, number = self.where.pop(future, (None, -1))
        if model is None:
            return
        running = model.jobs.get(number)
        if running is not None:
            self.forget(model, number)
            self.deliver(model, model.arena.stop(number, Status.CANCELLED, running.job.priority))
        self.settle(future, reason)

    def forget(self, model: Model, number: int) -> Future[JobResult]:
        """Take a job off all lists; gives its future."""
        running = model.jobs.pop(number)
        model.schedulers[running.job.priority].remove(number)
        model.watched.discard(number)
        self._deadlines.pop(number, None)
        if running.assembly.started is not None:
            model.solvers[running.job.solve.name] -= 1
        model.arena.forget(number)
        return running.future

    def settle(self, future: Future[JobResult], outcome: JobResult | Exception | None) -> None:
        """Answer whoever waits: with a result, an error, or (None) by cancelling."""
        self.where.pop(future, None)
        with contextlib.suppress(InvalidStateError):  # whoever waited may have cancelled it meanwhile
            if outcome is None:
                future.cancel()
            elif isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _count_cancelled(self, finished: Finished, part: slice) -> None:
        if self._observer is not None:
            self._observer.cancelled(int(finished.nfe[part].sum()))
