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
from numpy.typing import NDArray
from pathline._bulk_conditions import ConditionCounts, RowConditions, merged
from pathline._bulk_spec import FIELDS, JobSpec, ShardRows

from engine.engine import Engine
from engine.job import SAMPLE, EngineFailed, Job, JobProgress, Priority
from fleet.errors import CommandError, FleetError
from models.checkpoint.card import Card, CheckpointError, read_card
from models.conditions import ONE
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
from solvers.plan import Plan

_LIMITS: dict[str, Any] = {
    "max_samples": 2**62, "max_steps": 2**31, "max_nfe": 2**62, "max_answer_bytes": 2**62, "watch_s": 0.0
}  # fmt: skip
"""No limits: they protect a service from its clients, but here the job's owner also runs it."""

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
    except (UnknownModel, RepositoryError, CheckpointError) as error:
        raise CommandError(str(error)) from None


class Maker:
    """A loaded model that makes rows. Close it, or use it as a context manager.

    Attributes:
        model: the loaded model.
        deadline: end of the time limit of what it makes: none.
    """

    deadline = math.inf

    def __init__(self, settings: Settings, name: str, version: int, threads: int, device: str = "") -> None:
        """Load a model.

        Args:
            settings: the models folder, the device and the form of the network.
            name, version: of the model.
            threads: CPU threads of the network.
            device: overrides the device of the settings.

        Raises:
            CommandError: the model cannot be loaded.
        """
        self._settings = settings.model_copy(update=_LIMITS | {"threads": threads, "device": device or settings.device})
        self._engine, self._ledger = Engine(self._settings), Ledger(2**62)
        self._engine.start()
        try:
            folder = Repository(settings.models_dir).resolve(name, version)
            self.model: ModelVersion = load_version(self._engine, settings, name, version, folder)
        except (UnknownModel, RepositoryError, CheckpointError) as error:
            self._engine.stop()
            raise CommandError(str(error)) from None
        except BaseException:
            self._engine.stop()
            raise

    @classmethod
    def of(cls, spec: JobSpec, settings: Settings, conditions: RowConditions | None = None, device: str = "") -> Maker:
        """Return a maker of the rows of a job, with those of its conditions that are not in its request.

        Raises:
            CommandError: the model cannot be loaded.
            BulkConflict: the model or the solver's numbers differ from those of the spec.
        """
        maker = cls(settings, spec.model, spec.version, spec.threads, device)
        try:
            plan = maker.job(spec.request, conditions).plan
            now = {"checkpoint": maker.model.digest, "path": maker.model.path, "plan": digest_of_plan(plan)}
            spec.refuse_other(now)
        except BaseException:
            maker.close()
            raise
        return maker

    def __enter__(self) -> Maker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine."""
        self._engine.stop()

    def job(self, request: Mapping[str, Any], conditions: RowConditions | None = None) -> Job:
        """Return the job of one sample of a request; raise a CommandError if the request is refused."""
        return self._job(request, 0, 0, 0, 1, conditions)[1]

    def check(self, request: Mapping[str, Any], conditions: RowConditions, first: int, rows: int) -> None:
        """Raise a CommandError if the service would refuse the conditions of these rows."""
        self._job(request, 0, 0, first, rows, conditions)

    def make(
        self,
        request: Mapping[str, Any],
        seed: int,
        first_index: int,
        first: int,
        rows: int,
        conditions: RowConditions | None = None,
        tell: Tell | None = None,
    ) -> ShardRows:
        """Make rows of a job.

        Args:
            request: fields of a sample request.
            seed, first_index: those of the job.
            first, rows: which of its rows.
            conditions: those that are not in the request, if there are any.
            tell: called a few times a second with the approximate number of rows done.

        Raises:
            CommandError: the request is refused, with the message of the service.
            FleetError: the network raised.
        """
        valid, job = self._job(request, seed, first_index, first, rows, conditions)
        if tell is not None:
            job = replace(job, on_progress=lambda progress: tell(_rows_of(progress, rows)), progress_s=0.2)
        try:
            if job.sizes or job.operation is not SAMPLE:
                self._prepare(job)
            result = self._engine.submit(job).result()
        except EngineFailed as error:
            raise FleetError(f"rows {first} to {first + rows - 1}: {error}") from None
        samples = samples_of(valid.model, result, valid.decode)
        takes, recorded = self.model.request_conditions, None
        if isinstance(conditions, ConditionCounts):
            entry = None if takes is None else takes.entries.get(ONE)
            recorded = conditions.recorded(first, rows, (entry and entry.names) or (), self.model.card.dtype)
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
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            why = f"cannot be evaluated at {shape}" if job.operation is SAMPLE else "has no derivative to use"
            raise CommandError(f"model {self.model.name!r} {why}: {message}") from error

    def make_shard(
        self, spec: JobSpec, shard: int, conditions: RowConditions | None, tell: Tell | None = None
    ) -> ShardRows:
        """Make a shard of a job; errors as in `make`."""
        first, rows = spec.range(shard)
        return self.make(spec.request, spec.seed, spec.first_index, first, rows, conditions, tell)

    def reserve(self, size: int, conditions: int = 0) -> Hold:
        """Reserve memory as a request does; a job has no limit of its own."""
        return self._ledger.take(size, self.deadline)

    def _job(
        self,
        request: Mapping[str, Any],
        seed: int,
        first_index: int,
        first: int,
        rows: int,
        conditions: RowConditions | None,
    ) -> tuple[Validated, Job]:
        members = {name: request[name] for name in FIELDS if name in request}
        members |= {"model": self.model.name, "num_samples": rows, "seed": seed, "first_index": first_index + first}
        members = merged(members, conditions, first, rows)
        try:
            parsed = check(SampleRequest, members)
            valid = validate_sample(parsed, self.model, self._settings, ENCODERS[_NPY], self)
        except ProblemError as problem:
            raise CommandError(problem.detail) from None
        if valid.job.plan.batch:
            raise CommandError("error_control 'batch' ties all samples together, so they cannot be split into shards")
        job = replace(valid.job, deadline=None, partial=False, trace="none", priority=Priority.BULK, on_logged=None)
        return valid, job


def _rows_of(progress: JobProgress, rows: int) -> int:
    return min(rows, int(progress.share * rows))


def digest_of_card(card: Card) -> str:
    """Return the digest of a checkpoint, as `/v1/models` shows it."""
    return f"sha256:{card.card_sha256}"


def digest_of_plan(plan: Plan) -> str:
    """Return the SHA-256 of all numbers of a compiled solver."""
    digest = hashlib.sha256(repr(sorted(plan.settings.items(), key=str)).encode())
    arrays: list[NDArray[Any] | None] = [plan.times, *(getattr(plan.rows, name) for name in ("a", "b", "e", "c"))]
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array, dtype="<f8").data)
    return digest.hexdigest()


def rate_of(maker: Maker, request: Mapping[str, Any], conditions: RowConditions | None, seconds: float = 2.0) -> float:
    """Measure rows per second on an increasing number of the job's first rows, until they take long enough."""
    rows, most = 64, None if conditions is None else conditions.total
    while True:
        count = rows if most is None else min(rows, most)
        begin = time.perf_counter()
        maker.make(request, 0, 0, 0, count, conditions)
        took = time.perf_counter() - begin
        if took >= seconds / 2 or count < rows or rows >= 1 << 20:
            return count / took
        rows = min(rows * 4, max(2 * rows, int(rows * seconds / max(took, 1e-3))))


def devices(settings: Settings) -> list[str]:
    """Return the devices of workers: all GPUs or the CPU, or the device that the settings name."""
    if settings.device != "auto" or not torch.cuda.is_available():
        return [settings.device]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
