"""The maker of rows: it computes the rows of a shard with the service's engine, in a worker process.

A shard goes through the service's own validation and engine, as a sample request for its rows would, so it has the same
bits as `/v1/sample`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pathline._bulk_conditions import Arrays, RowConditions, merged
from pathline._bulk_spec import FIELDS, JobSpec, ShardRows

from engine.engine import Engine
from engine.job import SAMPLE, EngineFailed, Job, Priority
from fleet.errors import CommandError, FleetError
from models.checkpoint.card import Card, CheckpointError, read_card
from models.conditions import ONE
from models.messages import typed_line
from models.repository import Repository, RepositoryError, UnknownModel
from service.errors import ProblemError
from service.ledger import Hold, Ledger
from service.registry.version import ModelVersion, load_version
from service.requests.parsing import check
from service.requests.schemas import SampleRequest
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import ENCODERS
from service.responses.samples import samples_of
from service.settings import Settings
from solvers.plan import A, B, E, Plan

_LIMITS: dict[str, Any] = {
    "max_samples": 2**62, "max_steps": 2**31, "max_nfe": 2**62, "max_answer_bytes": 2**62, "watch_s": 0.0
}  # fmt: skip
"""No limits: they protect a service from its clients, but here the job's owner also runs it."""

_UNUSABLE = (UnknownModel, RepositoryError, CheckpointError)

_NO_CONDITIONS = Arrays({}, 0)

_NPY = "application/x-npy"

Tell = Callable[[int], None]
"""Called from another thread with the approximate number of rows of a shard that are done."""


def find(settings: Settings, name: str, version: int | None) -> tuple[int, Card]:
    """Return the version of a model and its card, without loading it.

    Raises:
        CommandError: there is no such model, or its card cannot be read.
    """
    try:
        folder = Repository(settings.models_dir).resolve(name, version)
        return int(folder.name), read_card(folder)
    except _UNUSABLE as error:
        raise CommandError(str(error)) from None


class Maker:
    """A loaded model that makes the rows of one bulk job. Close it.

    Args:
        settings: the models folder, the device and the form of the network.
        name, version: of the model.
        threads: CPU threads of the network.
        request: fields of a sample request, the same for all rows.
        conditions: those that are not in the request.
        seed, first_index: row k of the job is sample `first_index` + k of the seed.
        device: overrides the device of the settings.

    Attributes:
        model: the loaded model.
        deadline, alike: see `MemoryOwner`; there is no time limit, and no kind of requests.

    Raises:
        CommandError: the model cannot be loaded.
    """

    deadline, alike = math.inf, None

    def __init__(
        self,
        settings: Settings,
        name: str,
        version: int,
        threads: int,
        request: Mapping[str, Any],
        conditions: RowConditions = _NO_CONDITIONS,
        *,
        seed: int = 0,
        first_index: int = 0,
        device: str = "",
    ) -> None:
        self.request, self._conditions, self._seed, self._first_index = request, conditions, seed, first_index
        self._settings = settings.model_copy(update=_LIMITS | {"threads": threads, "device": device or settings.device})
        self._engine, self._ledger = Engine(self._settings), Ledger(2**62)
        self._engine.start()
        try:
            folder = Repository(settings.models_dir).resolve(name, version)
            self.model: ModelVersion = load_version(self._engine, settings, name, version, folder)
        except BaseException as error:
            self._engine.stop()
            if isinstance(error, _UNUSABLE):
                raise CommandError(str(error)) from None
            raise

    @classmethod
    def of(cls, spec: JobSpec, settings: Settings, conditions: RowConditions, device: str = "") -> Maker:
        """Return a maker of the rows of a job, with those of its conditions that are not in its request.

        Raises:
            CommandError: the model cannot be loaded.
            BulkConflict: the model or the solver's numbers differ from those of the spec.
        """
        place = {"seed": spec.seed, "first_index": spec.first_index, "device": device}
        maker = cls(settings, spec.model, spec.version, spec.threads, spec.request, conditions, **place)
        try:
            plan = digest_of_plan(maker.job()[1].plan)
            spec.refuse_other({"checkpoint": maker.model.digest, "path": maker.model.path, "plan": plan})
        except BaseException:
            maker.close()
            raise
        return maker

    def close(self) -> None:
        """Stop the engine."""
        self._engine.stop()

    def job(self, first: int = 0, rows: int = 1) -> tuple[Validated, Job]:
        """Return the request for rows as the service validates it, and its job; raise a CommandError if it refuses."""
        members = {name: self.request[name] for name in FIELDS if name in self.request}
        members |= {"model": self.model.name, "num_samples": rows, "seed": self._seed}
        members |= {"first_index": self._first_index + first}
        try:
            parsed = check(SampleRequest, merged(members, self._conditions, first, rows))
            valid = validate_sample(parsed, self.model, self._settings, ENCODERS[_NPY], self)
        except ProblemError as problem:
            raise CommandError(problem.detail) from None
        if valid.job.plan.batch:
            raise CommandError("error_control 'batch' ties all samples together, so they cannot be split into shards")
        return valid, replace(
            valid.job, deadline=None, partial=False, trace="none", priority=Priority.BULK, on_logged=None
        )

    def make(self, first: int, rows: int, tell: Tell | None = None) -> ShardRows:
        """Make rows of the job.

        Args:
            first, rows: which of its rows.
            tell: called a few times a second with the approximate number of rows done.

        Raises:
            CommandError: the request is refused, with the message of the service.
            FleetError: the network raised.
        """
        valid, job = self.job(first, rows)
        if tell is not None:
            job = replace(job, on_progress=lambda progress: tell(min(rows, int(progress.share * rows))), progress_s=0.2)
        try:
            if job.sizes or job.operation is not SAMPLE:
                self._prepare(job)
            result = self._engine.submit(job).result()
        except EngineFailed as error:
            raise FleetError(f"rows {first} to {first + rows - 1}: {error}") from None
        samples = samples_of(valid.model, result, valid.decode)
        takes = self.model.request_conditions
        entry = None if takes is None else takes.entries.get(ONE)
        recorded = self._conditions.recorded(first, rows, (entry and entry.names) or (), self.model.card.dtype)
        return ShardRows(first, np.asarray(samples), result.nfe.astype(np.int32), result.status, recorded)

    def _prepare(self, job: Job) -> None:
        """Prepare the engine for the shape and the operation of a job.

        Raises:
            CommandError: the network cannot be evaluated at that shape, or has no derivative to use.
        """
        try:
            self._engine.prepare(self.model.name, self.model.version, job.operation, job.sizes)
        except Exception as error:  # whatever the network raises
            shape = ", ".join(f"{axis} = {size}" for axis, size in job.sizes)
            message = typed_line(error)
            why = f"cannot be evaluated at {shape}" if job.operation is SAMPLE else "has no derivative to use"
            raise CommandError(f"model {self.model.name!r} {why}: {message}") from error

    def reserve(self, size: int, conditions: int = 0) -> Hold:
        """Reserve memory as a request does; a job has no limit of its own."""
        return self._ledger.take(size, self.deadline)


def digest_of_card(card: Card) -> str:
    """Return the digest of a checkpoint, as `/v1/models` shows it."""
    return f"sha256:{card.card_sha256}"


def digest_of_plan(plan: Plan) -> str:
    """Return the SHA-256 of all numbers of a compiled solver."""
    digest = hashlib.sha256(repr(sorted(plan.settings.items(), key=str)).encode())
    a, b, e = (plan.rows.weights[:, place] for place in (A, B, E))
    for array in (plan.times, a, b, e, plan.rows.records["c"]):
        if array is not None:
            digest.update(np.ascontiguousarray(array, dtype="<f8").data)
    return digest.hexdigest()


def rate_of(maker: Maker, most: int, seconds: float = 2.0) -> float:
    """Measure rows per second on an increasing number of the job's first rows, until they take long enough.

    Args:
        maker: makes the rows.
        most: how many there are.
        seconds: how long they should take.
    """
    rows = 64
    while True:
        count = min(rows, most)
        begin = time.perf_counter()
        maker.make(0, count)
        took = time.perf_counter() - begin
        if took >= seconds / 2 or count < rows or rows >= 1 << 20:
            return count / took
        rows = min(rows * 4, max(2 * rows, int(rows * seconds / max(took, 1e-3))))


def devices(settings: Settings) -> list[str]:
    """Return the devices of workers: all GPUs or the CPU, or the device that the settings name."""
    if settings.device != "auto" or not torch.cuda.is_available():
        return [settings.device]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
