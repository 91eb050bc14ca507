"""Bulk jobs: samples from a service, written to files; crashes and restarts never change the rows.

The rows of a job are split into shards. A shard is requested in pages that the service answers in a few seconds, then
written and given a receipt; repeating the call makes the shards without one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pathline._bar import Follow, following
from pathline._bulk_arguments import BulkArguments, Counts
from pathline._bulk_conditions import Arrays, RowConditions, merged
from pathline._bulk_spec import BLOCK, JobSpec, Receipt, ShardRows
from pathline._calls import Calls
from pathline._conditions import ONE
from pathline._events import Progress
from pathline._fields import BulkOptions
from pathline._request import chosen_seed, sample_request
from pathline._results import SampleResult
from pathline._retry import RetryPolicy
from pathline._typed import typed, understood
from pathline.bulk_folder import Folder, JobStore, ShardQueue
from pathline.errors import (
    APIError,
    BulkConflict,
    BulkIncomplete,
    DeadlineExceeded,
    InvalidRequest,
    InvalidValue,
    PathlineError,
    RequestTimeout,
    TransportError,
    Unavailable,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PAGE_S, _PROBE_S = 2.0, 0.5
_FIRST_PAGE = 1024
_PATIENCE_S, _ATTEMPTS = 60.0, 100  # of one request: long enough for a service to restart


@dataclass(frozen=True)
class BulkResult:
    """A completed bulk job.

    Attributes:
        folder: Folder with the files.
        model, version, checkpoint: The model that made the samples.
        seed, first_index: Row k of the job is sample `first_index` + k of the seed.
        rows: The number of samples.
        shape: Shape of one sample.
        nfe: Velocity evaluations of all samples.
        status: Number of samples by final status.
        fingerprint: Hash of all rows, 64 hexadecimal digits; `python -m fleet sample` gives equal samples the same.
        deterministic: Whether the service promises the same bits for the same job.
    """

    folder: Path
    model: str
    version: int
    checkpoint: str
    seed: int
    first_index: int
    rows: int
    shape: tuple[int, ...]
    nfe: int
    status: Mapping[str, int]
    fingerprint: str
    deterministic: bool

    @property
    def ok(self) -> bool:
        """Whether every sample reached the end."""
        return set(self.status) <= {"success"}

    @property
    def files(self) -> list[Path]:
        """The files of samples, in the order of their rows."""
        return sorted(path for path in (self.folder / "shards").iterdir() if not path.name.startswith("."))


@dataclass
class Pager:
    """Asks for consecutive rows of a job, as many at a time as make a response of about two seconds.

    Attributes:
        calls: Operations of the client.
        model: Name of the model.
        request: Members of each request.
        conditions: Those that differ from row to row.
        first_index: Index of the first row's sample.
        rows, most: The size of the next page, and the largest that the service takes.
        seconds: Time that the last page took.
    """

    calls: Calls
    model: str
    request: dict[str, Any]
    conditions: RowConditions
    first_index: int
    rows: int
    most: int = 1 << 30
    seconds: float = 0.0

    async def page(self, first: int, most: int) -> SampleResult:
        """Return a page of the rows from `first`, with at most so many; wait if the service is at capacity."""
        while True:
            rows, begin = min(self.rows, most), time.monotonic()
            members = merged(self.request, self.conditions, first, rows) | {"first_index": self.first_index + first}
            try:
                result = await self.calls.sampled(sample_request(self.model, rows, members, self.calls.url))
            except (InvalidRequest, DeadlineExceeded) as error:
                if not _too_many(error) or rows == 1:
                    raise
                self.rows = self.most = rows // 2
            except Unavailable as error:
                if error.slug != "overloaded":  # else other requests come first; this is not a failed attempt
                    raise
                await self.calls.io.sleep(min(error.retry_after_s or 1.0, _PATIENCE_S))
            else:
                self.seconds = max(time.monotonic() - begin, 1e-6)
                if rows < most:
                    self.rows = max(1, min(self.most, int(rows * min(4.0, max(0.25, _PAGE_S / self.seconds)))))
                return result


def _members(request: Mapping[str, Any], version: int | None, seed: int, timeout_s: float | None) -> dict[str, Any]:
    own = {"version": version, "seed": seed, "trace": "none", "priority": "bulk", "timeout_s": timeout_s}
    return {**request, **own}


def _patient(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy of a job's requests: unless retries are turned off, the service may restart meanwhile."""
    if policy.max_attempts == 1:
        return policy
    return replace(
        policy,
        max_attempts=max(_ATTEMPTS, policy.max_attempts),
        max_total_s=max(_PATIENCE_S, policy.max_total_s),
        connect_s=max(_PATIENCE_S, policy.connect_s),
    )


@dataclass
class BulkJob:
    """A job in progress, made by several workers, which threads may run.

    Attributes:
        queue: Its shards, which are still to be made.
        pager: Asks for its rows.
        names: Names of the model's classes, if it has them.
        tell: Called with the progress.
        made, began: How many rows were made, and since when.
        lock: Held while these are told.
    """

    queue: ShardQueue
    pager: Pager
    names: Sequence[str]
    tell: Callable[[Progress], None]
    made: int = 0
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    async def worker(self) -> None:
        """Make shards until none is left."""
        while (shard := self.queue.take()) is not None:
            try:
                await self._shard(shard)
            except PathlineError as error:
                if not _passes(error):
                    raise
                await self.pager.calls.io.do(lambda shard=shard, reason=str(error): self.queue.retry(shard, reason))

    async def _shard(self, shard: int) -> None:
        spec, folder = self.queue.spec, self.queue.folder
        first, rows = spec.range(shard)
        samples = np.empty((rows, *spec.shape), spec.dtype)
        nfe, status, deterministic = np.empty(rows, np.int32), np.empty(rows, object), True
        done, begin = 0, time.monotonic()
        try:
            while done < rows:
                if self.queue.stopped:
                    return
                result = await self.pager.page(first + done, rows - done)
                _refuse_changed(spec, result)
                part = slice(done, done + len(result))
                samples[part], nfe[part] = result.samples, result.nfe_per_sample
                status[part], deterministic = result.status_per_sample, deterministic and result.deterministic
                done += len(result)
                self._advance(len(result))
        except BaseException:
            self._advance(-done)
            raise
        recorded = self.pager.conditions.recorded(first, rows, self.names, spec.dtype)
        content = ShardRows(first, samples, nfe, status.astype(np.str_), recorded)
        receipt = Receipt.of(spec, shard, content, deterministic, time.monotonic() - begin)
        await self.pager.calls.io.do(lambda: folder.commit(spec, content, receipt))

    def _advance(self, rows: int) -> None:
        with self.lock:
            self.made += rows
            total, done, passed = self.queue.spec.total, self.queue.done + self.made, time.monotonic() - self.began
            rate = self.made / passed if passed > 0 else 0.0
            left = (total - done) / rate if rate > 0 else None
            fields = {"rows": done, "total": total, "rows_per_s": rate}
            self.tell(Progress(0, 0.0, done / total, left, fields))

    async def result(self) -> BulkResult:
        """Return the totals over all receipts.

        Raises:
            BulkIncomplete: Shards were given up; the others are done.
        """
        spec, folder = self.queue.spec, self.queue.folder
        summary = await self.pager.calls.io.do(lambda: folder.summary(spec))
        if failed := self.queue.failed:
            (shard, why), *further = sorted(failed.items())
            more = f", and {len(further)} more" if further else ""
            raise BulkIncomplete(
                f"{folder.address}: shard {shard} was given up ({why}){more}; {summary.shards} are done; "
                "call again to make the rest",
                failed,
            )
        if left := (await self.pager.calls.io.do(self.queue.left)):
            raise BulkIncomplete(
                f"{folder.address}: {left} receipts were removed while the job ran; call again to make their shards"
            )
        totals = {**vars(summary), "fingerprint": summary.fingerprint}
        return typed(BulkResult, {**vars(spec), **totals}, folder=Path(folder.address))


def _passes(error: PathlineError) -> bool:
    """Return whether another attempt at a shard may succeed."""
    if isinstance(error, APIError):
        return error.retryable or error.status >= 500
    if isinstance(error, TransportError):
        return error.retryable or isinstance(error, RequestTimeout)
    return not isinstance(error, BulkConflict | InvalidValue)


def _too_many(error: PathlineError) -> bool:
    if isinstance(error, InvalidRequest) and error.slug != "job-too-large":
        return any(fault.get("field") == "num_samples" for fault in error.errors)
    return True


def _refuse_changed(spec: JobSpec, result: SampleResult) -> None:
    of_answer = {
        "checkpoint": result.checkpoint,
        "version": result.version,
        "noise": result.extra.get("noise", spec.noise),
        "shape": result.samples.shape[1:],
        "dtype": str(result.samples.dtype),
    }
    for name, theirs in of_answer.items():
        mine = getattr(spec, name)
        if theirs != mine:
            raise BulkConflict(
                f"the model of the service has changed since the job began: its {name} is {theirs!r}, not "
                f"{mine!r}; restore it, or start a new job in another folder"
            )


async def bulk(
    calls: Calls,
    model: str,
    total: int | None = None,
    *,
    to: str | PathLike[str],
    counts: Counts | None = None,
    format: Literal["npy", "parquet"] | None = None,  # noqa: A002 - as NumPy and pandas call it
    workers: int = 2,
    tries: int = 3,
    shard_rows: int | None = None,
    progress: bool | Follow | None = None,
    **options: Unpack[BulkOptions],
) -> BulkResult:
    """Draw any number of samples into a folder, or resume the job in it.

    Row k of the job is sample ``first_index + k`` of the seed. The folder has the layout of
    ``python -m fleet sample``, so ``python -m fleet verify`` and ``export`` can read it. Finished shards are kept:
    after Ctrl-C, a crash or an error, repeat the call to make the rest. If the service is at capacity, the call
    waits.

    Args:
        model: Name of the model.
        total: Number of samples; required for a new job without `counts`.
        to: A new or empty folder, or the folder of the job.
        counts: Number of samples per condition: a mapping such as ``{7: 100}``, or pairs of condition and count.
        format: File format: ``"npy"`` (the default, samples only), or ``"parquet"``, which adds index, NFE, status
            and condition, and needs pyarrow.
        workers: Requests at the same time; two keep one service busy.
        tries: Attempts at a shard before giving up.
        shard_rows: ShardRows per file, a multiple of 64; by default, two minutes of work at most.
        progress: True draws a bar with the rate and the time left; a function is called with each `Progress`, the
            `fields` of which have ``rows``, ``total`` and ``rows_per_s``.
        **options: See `BulkOptions`; `timeout_s` applies to each request. Arrays in `conditions` and `negative` have
            one value for all samples, or one for each of the `total` samples.

    Raises:
        BulkConflict: The folder holds another job or something else, or the service's model has changed.
        BulkIncomplete: Shards were given up after `tries` tries; the others are done.
        OSError: The folder cannot be read or written.
        PathlineError: See `pathline.errors`.
        TypeError, InvalidValue: As for `sample`.
    """
    if not isinstance(model, str):
        raise TypeError(f"model={model!r} is not allowed; use the name of a model")
    arguments = BulkArguments.of(model, total, counts, format, shard_rows, workers, tries, options)
    if "://" in str(to):
        raise InvalidValue(f"to={str(to)!r} is not a local folder; use `python -m fleet sample` for stores")
    folder = Folder(JobStore(Path(to).expanduser().absolute()))  # another working directory changes nothing
    spec = await _begin(calls, folder, arguments)
    conditions = await calls.io.do(lambda: folder.conditions(spec))
    served = (await calls.model(spec.model)).served(spec.version) if spec.table else {}
    names = ((served.get("conditions") or {}).get(ONE) or {}).get("names") or ()
    members = _members(spec.request, spec.version, spec.seed, options.get("timeout_s"))
    patient = replace(calls, retry=_patient(calls.retry))
    pager = Pager(patient, spec.model, members, conditions, spec.first_index, rows=_FIRST_PAGE)
    with following(progress or (lambda _: None)) as tell:
        job = BulkJob(ShardQueue(folder, spec, tries), pager, names, tell)
        await calls.io.together([job.worker] * workers, job.queue.stop)
    return await job.result()


async def _begin(calls: Calls, folder: Folder, arguments: BulkArguments) -> JobSpec:
    """Start a job, or check that the one in a folder is this one.

    Raises:
        BulkConflict: The folder holds another job, or something else.
        InvalidValue: A new job needs a `total`.
        PathlineError: The service refuses the request.
        OSError: The folder cannot be read or written.
    """
    spec = await calls.io.do(folder.spec)
    if spec is None:
        if arguments.model is None or arguments.total is None:
            raise InvalidValue("a new job needs total, or counts", "total")
        version = arguments.options.get("version")
        arrays = await _fitted(calls, arguments, arguments.model, arguments.total, version)
        conditions = arguments.table or arrays
        spec = await _new(calls, arguments, arguments.model, arguments.total, conditions)
        await calls.io.do(lambda: folder.create(spec, conditions))
    elif spec.by_client:
        arguments.refuse_other(spec, await _fitted(calls, arguments, spec.model, spec.total, spec.version))
    else:
        raise BulkConflict(
            f"{folder.address} holds a job of `python -m fleet sample`; resume it with that, or choose a new folder"
        )
    return spec


async def _fitted(calls: Calls, arguments: BulkArguments, model: str, total: int, version: int | None) -> Arrays:
    if not arguments.arrays:
        return Arrays({}, total)
    takes, _ = await calls.shapes(model, version, arguments.options.get("timeout_s"))
    return arguments.fitted(total, takes)


async def _new(calls: Calls, arguments: BulkArguments, model: str, total: int, conditions: RowConditions) -> JobSpec:
    seed, first_index = chosen_seed(arguments.options.get("seed")), arguments.options.get("first_index", 0)
    request = _members(arguments.request, arguments.options.get("version"), seed, arguments.options.get("timeout_s"))
    pager, most = Pager(calls, model, request, conditions, first_index, rows=BLOCK), min(_FIRST_PAGE, total)
    while True:  # more and more of the first rows, until they take long enough to measure the service's speed
        first = await pager.page(0, most)
        request["version"] = first.version
        if first.solver.get("error_control") == "batch":
            message = "error_control 'batch' ties all samples together, so they cannot be split into shards"
            raise InvalidValue(message, "solver")
        enough = pager.seconds >= _PROBE_S or len(first) >= min(most, pager.most)
        if arguments.shard_rows is not None or enough:
            break
    info = await calls.model(model)
    with understood("the description of the model"):
        members = {
            **arguments.members(total, conditions, first.samples, lambda: len(first) / pager.seconds),
            "model": model,
            "version": first.version,
            "checkpoint": first.checkpoint,
            "path": info.served(first.version).get("path") or "",
            "threads": 0,  # decided by the service, as are the numbers of the solver
            "noise": first.extra.get("noise", ""),
            "plan": "",
            "seed": seed,
            "format": arguments.format or "npy",
            "columns": list(first.extra.get("columns") or ()),
        }
        return typed(JobSpec, members)
