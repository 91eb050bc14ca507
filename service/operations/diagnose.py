"""The Jacobian of the velocity along the paths of samples.

Two jobs one after the other: the paths, in the arena for samples with their states saved; then the rows of all
Jacobians, each a lane of one step (`models.derived.JacobianField`), in an arena of their own. Their eigenvalues are
taken beside the event loop, in slices, so that a time limit or a client that leaves ends them soon.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.diagnose import MAX_WIDTH, decompose, stiffness, stiffness_ratio
from service.engine.job import Job, JobResult, Priority
from service.engine.operation import Operation
from service.errors import invalid
from service.ledger import Take
from service.operations.schemas import DiagnoseRequest
from service.registry.served import Served
from service.requests.checks import (
    check_indices,
    check_limits,
    compiled,
    condition_of,
    deadline_of,
    seed_of,
    start_of,
    times_of,
)
from service.requests.sizes import kept_steps, lanes_bytes, logged_beyond
from service.responses.findings import check_size, head_of
from service.responses.traces import Array
from service.settings import Settings
from solvers import resolve
from solvers.plan import Plan

_STEPS = 20
_WORK_A_SLICE = 2_000_000  # of n matrices of width w, counted as n w^3: well under 0.1 s


def prepare(request: DiagnoseRequest, model: Served, settings: Settings, media: str, take: Take) -> Job:
    """Check a request, set aside the memory of both of its jobs, and make the job of its paths.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; what `take` raises.
    """
    n, times, width = request.num_samples, len(request.times), math.prod(model.event_shape)
    check_limits(request, settings, num_samples=n, times=times)
    check_indices(request)
    _check_cost(n, times, width, model, settings)
    condition = condition_of(request, model, n)
    if not {"solver", "steps"} & request.model_fields_set and isinstance(request.grid, str | dict):
        request = request.model_copy(update={"steps": _STEPS})
    solve = compiled(request, model, (0.0, 1.0))
    at = times_of("times", request.times, solve)
    x0, deadline = start_of(request.x0, n, model), deadline_of(request, settings)
    shapes = [(n, times, width)] * 2 + [(n, times)] * 3
    answer = check_size("num_samples", shapes, "float64", solve, media, settings.max_answer_bytes)
    hold = take(_memory(n, times, width, model, solve) + answer, deadline)
    return Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=n,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        x0=x0,
        save_at=at,
        condition=condition,
        guidance=request.guidance,
        deadline=deadline,
        trace="none",
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, n * kept_steps(solve, "none")),
    )


def _memory(n: int, times: int, width: int, model: Served, solve: Plan) -> int:
    """Return the bytes of memory of the paths, of the rows of all Jacobians, and of what is found of them."""
    paths = lanes_bytes(model, n, width, saved=times, given=True, steps=kept_steps(solve, "none"))
    rows = n * times * width
    jacobians = lanes_bytes(model, rows, width, given=True, constants=width + 2)
    found = 8 * rows * (width + 3)
    return paths + jacobians + found


def _check_cost(n: int, times: int, width: int, model: Served, settings: Settings) -> None:
    if width > MAX_WIDTH:
        raise invalid(
            "name",
            f"a state of model {model.name!r} has {width} numbers; Jacobians are taken of up to {MAX_WIDTH} "
            "(the cost of their eigenvalues grows with the third power)",
        )
    if n > settings.max_diagnosed:
        raise invalid(
            "num_samples",
            f"num_samples = {n} is over the limit of {settings.max_diagnosed} samples in one diagnosis of this "
            "service; ask for less, and page with first_index",
        )
    if n * times * width**2 > settings.max_derivatives:
        raise invalid(
            "num_samples",
            f"num_samples = {n} at {times} times with {width} x {width} Jacobians are {n * times * width**2} numbers, "
            f"over the limit of {settings.max_derivatives} of this service; ask for at most "
            f"{settings.max_derivatives // (times * width**2)} samples, or for fewer times",
        )


class Paths:
    """States on the paths, and the Jacobians at those that are finite.

    Attributes:
        there: (n, M) whether the state is known.
    """

    def __init__(self, job: Job, result: JobResult) -> None:
        assert result.saved is not None and job.save_at is not None  # noqa: S101, PT018  (the job saves)
        self._job, self._times = job, job.save_at
        states = result.saved.flatten(2)
        self.width = states.shape[2]
        self.there = states.isfinite().all(dim=2).numpy()
        self._states = states[torch.from_numpy(self.there)]
        self._where = np.nonzero(self.there)

    def jacobian_job(self) -> Job | None:
        """The job whose lanes are the rows of the Jacobians; None where there are none."""
        width, states, job = self.width, self._states, self._job
        if not len(states):
            return None
        sample, place = self._where
        t = torch.from_numpy(self._times[place]).to(states.dtype)
        at = torch.cat((states, t[:, None]), dim=1).repeat_interleave(width, dim=0)
        row = torch.arange(width, dtype=states.dtype).repeat(len(states))
        condition = job.condition
        if condition is not None:
            condition = condition[torch.from_numpy(np.repeat(sample, width))]
        return replace(
            job,
            solve=resolve(solver="euler", steps=1, dtype=states.dtype),
            follows=True,
            num_samples=len(at),
            x0=states.new_zeros(len(at), width),
            save_at=None,
            condition=condition,
            operation=Operation.JACOBIAN,
            constants=torch.cat((at, row[:, None]), dim=1),
        )

    def matrices(self, result: JobResult | None) -> NDArray[np.float64]:
        """Return the Jacobians (states that are there, width, width), NaN throughout where one is not finite."""
        if result is None:
            return np.zeros((0, self.width, self.width))
        rows = result.x.double().numpy().reshape(-1, self.width, self.width)
        broken = (result.status != "success").reshape(-1, self.width).any(axis=1)
        rows[broken] = np.nan
        return rows


class Spectra:
    """Eigenvalues and condition numbers of all Jacobians, taken slice by slice."""

    def __init__(self, paths: Paths, result: JobResult | None) -> None:
        """Take the result of `Paths.jacobian_job`; None where there was none."""
        self._matrices, self._where = paths.matrices(result), np.nonzero(paths.there)
        n, times = paths.there.shape
        self.real, self.imag = (np.full((n, times, paths.width), np.nan) for _ in range(2))
        self.condition = np.full((n, times), np.nan)

    def slices(self) -> Iterator[slice]:
        """Yield what to `take` at a time."""
        count = max(1, _WORK_A_SLICE // self.real.shape[2] ** 3)
        for begin in range(0, len(self._matrices), count):
            yield slice(begin, begin + count)

    def take(self, part: slice) -> None:
        """Decompose some of the Jacobians."""
        matrices = self._matrices[part]
        sample, place = (index[part] for index in self._where)
        good = np.isfinite(matrices).all(axis=(1, 2))
        at = sample[good], place[good]
        self.real[at], self.imag[at], self.condition[at] = decompose(matrices[good])

    def arrays(self) -> dict[str, Array | None]:
        """Return the arrays of the answer."""
        return {
            "eigenvalues_real": self.real,
            "eigenvalues_imag": self.imag,
            "condition_number": self.condition,
            "stiffness": stiffness(self.real),
            "stiffness_ratio": stiffness_ratio(self.real),
        }


def head(model: Served, job: Job, result: JobResult, width: int, deterministic: bool) -> dict[str, Any]:
    """Return the head of the answer."""
    times = [] if job.save_at is None else job.save_at.tolist()
    return head_of(model, result, job.solve.settings, deterministic) | {
        "seed": job.seed,
        "first_index": job.first_index,
        "noise": model.card.noise,
        "times": times,
        "shape": [job.num_samples, len(times), width],
    }


def together(first: JobResult, second: JobResult | None) -> JobResult:
    """Return the result of the paths with what the Jacobians cost added: rows and times, but no evaluation."""
    if second is None:
        return first
    return replace(
        first,
        rows=first.rows + second.rows,
        queue_s=first.queue_s + second.queue_s,
        solve_s=first.solve_s + second.solve_s,
        network_s=first.network_s + second.network_s,
    )
