"""Diagnoses: the Jacobian of the velocity along the paths of samples, its spectra and the response of ``diagnose``.

Two jobs one after the other: the paths, in the arena for samples with their states saved; then the rows of all
Jacobians, each a lane of one step (`solvers.derived.JacobianField`), in their own arena. Their eigenvalues are
computed in a worker thread, in slices, so that a time limit or a disconnect ends them soon.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from engine.job import Job, JobResult, Operation
from models.named_conditions import repeated
from service.http.context import Context
from service.registry.version import ModelVersion
from service.responses.arrays import Array, ArrayResponse
from service.responses.densities import arrays_response, head_of
from service.responses.schemas import Solved
from solvers import resolve
from solvers.derived import JacobianField
from solvers.diagnose import decompose, stiffness, stiffness_ratio

JACOBIAN = Operation("jacobian", JacobianField)
"""The state is a row of the Jacobian at a given place, in one Euler step from zero."""

_WORK_PER_SLICE = 2_000_000  # of n matrices of width w, counted as n w^3: well under 0.1 s


class DiagnoseResponse(Solved):
    """Response of ``diagnose``: a list for each sample, with an entry for each time; null if it was not reached."""

    seed: int
    first_index: int
    noise: str
    times: list[float]
    eigenvalues_real: list[list[list[float | None]]] = Field(description="by ascending real part")
    eigenvalues_imag: list[list[list[float | None]]]
    condition_number: list[list[float | None]] = Field(
        description="largest over smallest singular value; null where the Jacobian is singular"
    )
    stiffness: list[list[float | None]] = Field(
        description="contraction rate of the fastest direction, per unit of t: -min Re(eigenvalue), at least 0"
    )
    stiffness_ratio: list[list[float | None]] = Field(
        description="largest over smallest |Re(eigenvalue)|; null where the smallest is 0"
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
        """Return the job with the rows of the Jacobians as lanes; None if there are none."""
        width, states, job = self.width, self._states, self._job
        if not len(states):
            return None
        sample, place = self._where
        t = torch.from_numpy(self._times[place]).to(states.dtype)
        at = torch.cat((states, t[:, None]), dim=1).repeat_interleave(width, dim=0)
        row = torch.arange(width, dtype=states.dtype).repeat(len(states))
        of = np.repeat(sample, width)
        return replace(
            job,
            solve=resolve(solver="euler", steps=1, dtype=states.dtype),
            follows=True,
            num_samples=len(at),
            x0=states.new_zeros(len(at), width),
            save_at=None,
            conditions=repeated(job.conditions, of),
            negative=repeated(job.negative, of),
            operation=JACOBIAN,
            constants=torch.cat((at, row[:, None]), dim=1),
        )

    def matrices(self, result: JobResult | None) -> NDArray[np.float64]:
        """Return the Jacobians (known states, width, width); one that is not finite is NaN throughout."""
        if result is None:
            return np.zeros((0, self.width, self.width))
        rows = result.x.double().numpy().reshape(-1, self.width, self.width)
        broken = (result.status != "success").reshape(-1, self.width).any(axis=1)
        rows[broken] = np.nan
        return rows


class Spectra:
    """Eigenvalues and condition numbers of all Jacobians, taken slice by slice."""

    def __init__(self, paths: Paths, result: JobResult | None) -> None:
        """Take the result of `Paths.jacobian_job`; None if there was no such job."""
        self._matrices, self._where = paths.matrices(result), np.nonzero(paths.there)
        n, times = paths.there.shape
        self.real, self.imag = (np.full((n, times, paths.width), np.nan) for _ in range(2))
        self.condition = np.full((n, times), np.nan)

    def slices(self) -> Iterator[slice]:
        """Yield slices of Jacobians to `take` one after another."""
        count = max(1, _WORK_PER_SLICE // self.real.shape[2] ** 3)
        for begin in range(0, len(self._matrices), count):
            yield slice(begin, begin + count)

    def take(self, part: slice) -> None:
        """Decompose some of the Jacobians."""
        matrices = self._matrices[part]
        sample, place = (index[part] for index in self._where)
        good = np.isfinite(matrices).all(axis=(1, 2))
        at = sample[good], place[good]
        self.real[at], self.imag[at], self.condition[at] = decompose(matrices[good])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the response."""
        return {
            "eigenvalues_real": self.real,
            "eigenvalues_imag": self.imag,
            "condition_number": self.condition,
            "stiffness": stiffness(self.real),
            "stiffness_ratio": stiffness_ratio(self.real),
        }


def diagnose_response(
    model: ModelVersion, job: Job, result: JobResult, context: Context, spectra: Spectra, deterministic: bool
) -> ArrayResponse:
    """Return the response with the spectra along the paths of a job."""
    arrays = spectra.arrays()
    head = head_of(model, job, result, context, deterministic) | {
        "seed": job.seed,
        "first_index": job.first_index,
        "noise": model.card.noise,
        "times": [] if job.save_at is None else job.save_at.tolist(),
        "shape": list(spectra.real.shape),
    }
    return arrays_response(head, result, context, **arrays)


def together(first: JobResult, second: JobResult | None) -> JobResult:
    """Return the result of the paths with the rows and seconds of the Jacobians added, but not their NFE."""
    if second is None:
        return first
    return replace(
        first,
        rows=first.rows + second.rows,
        queue_s=first.queue_s + second.queue_s,
        solve_s=first.solve_s + second.solve_s,
        network_s=first.network_s + second.network_s,
        prelude_s=None if first.prelude_s is None else first.prelude_s + (second.prelude_s or 0.0),
    )
