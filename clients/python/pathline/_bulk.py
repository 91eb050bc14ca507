"""Bulk jobs: samples from a service, written to files; crashes and restarts never change the rows.

The rows of a job are split into shards. A shard is requested in pages that the service answers in a few seconds, then
written and given a receipt; repeating the call makes the shards without one. Like every operation, a job performs no
I/O itself: a client drives one flow for each worker.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pathline._bar import Follow, following
from pathline._calls import Calls
from pathline._conditions import NAMED, ONE, shape_of
from pathline._events import Progress
from pathline._fields import BulkOptions
from pathline._flow import Do, Flow, Together, Wait
from pathline._plot import needed
from pathline._request import SEED_LIMIT, chosen_seed, integer, plain_options, sample_request
from pathline._results import SampleResult
from pathline._typed import typed, understood
from pathline.bulk_folder import (
    BLOCK,
    FIELDS,
    FORMATS,
    Arrays,
    Folder,
    JobSpec,
    JobStore,
    Receipt,
    RowConditions,
    ShardRows,
    Table,
    merged,
    shard_rows,
)
from pathline.errors import (
    APIError,
    BulkConflict,
    BulkIncomplete,
    DeadlineExceeded,
    InvalidRequest,
    InvalidValue,
    PathlineError,
    RequestTimeout,
    ServerError,
    TransportError,
    Unavailable,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""Names of classes that are whole numbers."""

Counts = Mapping[Any, int] | Sequence[tuple[Any, int]]
"""How many samples of each condition: a mapping, or pairs where conditions are vectors."""

_OPTIONS = tuple(BulkOptions.__annotations__)

_PAGE_S, _PROBE_S = 2.0, 0.5
_FIRST_PAGE, _LEAST_PAGE = 1024, 1
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


@dataclass(frozen=True)
class BulkArguments:
    """The arguments of a call; None for omitted ones, which keeps the value of an existing job."""

    model: str
    total: int | None
    table: Table | None
    format: str | None
    shard_rows: int | None
    workers: int
    options: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(
        cls,
        model: str,
        total: int | None,
        counts: Counts | None,
        format: str | None,  # noqa: A002 - the name of the option
        shard_rows: int | None,
        workers: int,
        tries: int,
        options: Mapping[str, Any],
    ) -> BulkArguments:
        """Check the arguments as far as possible without the service.

        Raises:
            TypeError: An option is unknown, or a count is not an integer.
            InvalidValue: A number is out of range, or options contradict each other.
            ImportError: The format is Parquet and pyarrow is not installed.
        """
        if not isinstance(model, str):
            raise TypeError(f"model={model!r} is not allowed; use the name of a model")
        members = plain_options(options, _OPTIONS, ("total", "counts", "format", "shard_rows", "workers"))
        if "known" in members:  # it is the same for all requests, and part of the spec
            members["known"] = {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in members["known"].items()
            }
        table = None if counts is None else _table(counts)
        for name in ("condition", "conditions"):
            if table is not None and name in members:
                raise InvalidValue(f"{name} and counts are both given; give one of them", name)
        total = None if total is None else integer("total", total)
        first = integer("first_index", members.get("first_index", 0))
        if not 0 <= first < SEED_LIMIT:
            raise InvalidValue(f"first_index={first} is not allowed; use an integer from 0 to 2**63 - 1", "first_index")
        if total is not None and not 1 <= total <= SEED_LIMIT - first:
            raise InvalidValue(
                f"total={total} is not allowed; ask for 1 sample or more, of indices below 2**63", "total"
            )
        if table is not None and total not in (None, table.total):
            raise InvalidValue(f"total={total}, but the counts add up to {table.total}; leave out total", "total")
        if format not in (None, *FORMATS):
            raise InvalidValue(f"format={format!r} is not allowed; use one of {', '.join(FORMATS)}", "format")
        if format == "parquet":
            needed("pyarrow", "bulk")
        if shard_rows is not None and (integer("shard_rows", shard_rows) < BLOCK or shard_rows % BLOCK):
            raise InvalidValue(f"shard_rows={shard_rows} is not allowed; use a multiple of {BLOCK}", "shard_rows")
        for name, number in (("workers", workers), ("tries", tries)):
            if integer(name, number) < 1:
                raise InvalidValue(f"{name}={number} is not allowed; use at least 1", name)
        if "seed" in members:
            members["seed"] = chosen_seed(members["seed"])
        total = total if table is None else table.total
        return cls(model, total, table, format, shard_rows, workers, members, _arrays_in(members))

    @property
    def request(self) -> dict[str, Any]:
        """The options that determine the rows."""
        return {name: self.options[name] for name in FIELDS if name in self.options}

    def fitted(self, total: int, takes: Mapping[str, Any]) -> Arrays:
        """Return the arrays, each with one row for all samples or a row for each.

        Args:
            total: Number of samples.
            takes: Conditions of the model by name, as the service describes them.

        Raises:
            InvalidValue: The model has no such condition, or an array has another number of rows.
        """
        fitted = {}
        for key, array in self.arrays.items():
            name = key.partition(".")[2]
            shape = shape_of(takes, name)
            if shape is None:
                taken = f"takes {', '.join(takes)}" if takes else "is unconditional"
                raise InvalidValue(f"there is no condition {name!r}; this model {taken}", key)
            more = array.ndim - len(shape)
            if more not in (0, 1) or (more == 1 and len(array) not in (1, total)):
                raise InvalidValue(
                    f"{key} has the shape {list(array.shape)}; give one value of the shape {shape} for all samples, "
                    f"or {total} of these, one for each",
                    key,
                )
            fitted[key] = array if more else array[None]
        return Arrays(fitted, total)

    def refuse_other(self, spec: JobSpec, arrays: Arrays) -> None:
        """Check that a job matches the arguments, and the arrays among them.

        Raises:
            BulkConflict: A value differs; the message has both.
        """
        arguments = {
            "model": self.model,
            "version": self.options.get("version"),
            "seed": self.options.get("seed"),
            "first_index": self.options.get("first_index"),
            "total": self.total,
            "table": None if self.table is None else self.table.digest,
            "format": self.format,
            "shard_rows": self.shard_rows,
            **self.request,
            **arrays.digests,
        }
        spec.refuse_other(arguments)


def _table(counts: Counts) -> Table:
    try:
        pairs = [(condition, count) for condition, count in (counts.items() if isinstance(counts, Mapping) else counts)]
    except (TypeError, ValueError):
        raise InvalidValue("counts is neither a mapping nor pairs; use {7: 100} or [(7, 100)]", "counts") from None
    if not pairs:
        raise InvalidValue("counts is empty; give at least one condition and its number of samples", "counts")
    plain = plain_options({"condition": [condition for condition, _ in pairs]}, ("condition",))["condition"]
    numbers = [integer("counts", count) for _, count in pairs]
    for condition, count in zip(plain, numbers, strict=True):
        if count < 1:
            raise InvalidValue(f"counts asks for {count} samples of {condition!r}; ask for at least 1", "counts")
    return Table(plain, numbers)


def _arrays_in(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Take the numbers by name out of the options, as arrays; names of classes stay."""
    arrays = {}
    for option in NAMED:
        for name, value in list((options.get(option) or {}).items()):
            array = value if isinstance(value, np.ndarray) else _as_array(f"{option}.{name}", value)
            if array.dtype.kind in "biuf":
                arrays[f"{option}.{name}"] = array
                del options[option][name]
        if option in options and not options[option]:
            del options[option]
    return arrays


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise InvalidValue(f"{name} has lists of different lengths", name) from None


class _Page:
    """The number of rows to request at a time, chosen so that a response takes about two seconds."""

    def __init__(self) -> None:
        self.rows = _FIRST_PAGE
        self._most = 1 << 30

    def took(self, rows: int, seconds: float) -> None:
        """Adapt to the time that a page took."""
        rows_next = int(rows * min(4.0, max(0.25, _PAGE_S / max(seconds, 1e-3))))
        self.rows = max(_LEAST_PAGE, min(self._most, rows_next))

    def refused(self, rows: int) -> bool:
        """Adapt to the refusal of a page that was too large; return whether a smaller one can be tried."""
        self.rows = self._most = max(_LEAST_PAGE, rows // 2)
        return rows > _LEAST_PAGE


class BulkJob:
    """A job in progress, made by the flows of several workers, which threads may drive.

    Attributes:
        spec: Everything that determines the rows.
    """

    def __init__(
        self,
        calls: Calls,
        folder: Folder,
        spec: JobSpec,
        conditions: RowConditions | None,
        arguments: BulkArguments,
        labels: Mapping[str, int],
    ) -> None:
        policy = calls.retry
        if policy.max_attempts > 1:  # retries are not turned off
            policy = policy.at_least(_ATTEMPTS, _PATIENCE_S)
        self.spec, self._folder, self._conditions, self._labels = spec, folder, conditions, labels
        self._calls, self._timeout_s = replace(calls, retry=policy), arguments.options.get("timeout_s")
        self._page, self._lock = _Page(), threading.Lock()
        self._stopped = False
        self._waiting = deque(sorted(set(range(spec.shards)) - folder.done()))
        self._tried: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._made = 0
        self._before = spec.total - sum(spec.range(shard)[1] for shard in self._waiting)
        self._began = time.monotonic()
        self._tell: Callable[[Progress], None] = lambda _: None

    def stop(self) -> None:
        """Stop workers after the page that they are waiting for."""
        self._stopped = True

    def follow(self, tell: Callable[[Progress], None]) -> None:
        """Report progress to a function from now on."""
        self._tell = tell

    def worker(self, tries: int) -> Flow[None]:
        """Make shards until none is left.

        Args:
            tries: Attempts at a shard before giving up.
        """
        while not self._stopped and self._waiting:
            try:
                shard = self._waiting.popleft()
            except IndexError:  # another worker took it
                return
            try:
                yield from self._shard(shard)
            except PathlineError as error:
                if not _passes(error):
                    raise
                self._tried[shard] = tried = self._tried.get(shard, 0) + 1
                if tried < tries:
                    self._waiting.append(shard)  # after the others, which may succeed
                else:
                    self._failed[shard] = str(error)
                    yield Do(lambda shard=shard, reason=str(error), tried=tried: self._folder.note_failure(
                        shard, reason, tried
                    ))  # fmt: skip

    def _shard(self, shard: int) -> Flow[None]:
        first, rows = self.spec.range(shard)
        samples = np.empty((rows, *self.spec.shape), self.spec.dtype)
        nfe, status, deterministic = np.empty(rows, np.int32), np.empty(rows, object), True
        done, begin = 0, time.monotonic()
        try:
            while done < rows:
                if self._stopped:
                    return
                result = yield from self._paged(first + done, rows - done)
                part = slice(done, done + len(result))
                samples[part], nfe[part] = result.samples, result.nfe_per_sample
                status[part], deterministic = result.status_per_sample, deterministic and result.deterministic
                done += len(result)
                self._advance(len(result))
        except BaseException:
            self._advance(-done)
            raise
        content = ShardRows(first, samples, nfe, status.astype(np.str_), self._conditions_of(first, rows))
        receipt = Receipt.of(self.spec, shard, content, deterministic, time.monotonic() - begin)
        yield Do(lambda: self._folder.commit(self.spec, content, receipt))

    def _paged(self, first: int, most: int) -> Flow[SampleResult]:
        """Request one page of rows."""
        while True:
            rows, begin = min(self._page.rows, most), time.monotonic()
            members = merged(self.spec.request, self._conditions, first, rows)
            try:
                result = yield from self._calls.sampled(
                    _request(self.spec, first, rows, members, self._timeout_s, self._calls.url)
                )
            except (InvalidRequest, DeadlineExceeded) as error:
                if not (_too_many(error) and self._page.refused(rows)):
                    raise
                continue
            except Unavailable as error:
                if error.slug != "overloaded":  # else other requests come first; this is not a failed attempt
                    raise
                yield Wait(min(error.retry_after_s or 1.0, _PATIENCE_S))
                continue
            _refuse_changed(self.spec, result)
            if rows < most:
                self._page.took(rows, time.monotonic() - begin)
            return result

    def _conditions_of(self, first: int, rows: int) -> np.ndarray | None:
        """Return the labels or vectors of a table of conditions, for the files."""
        if not isinstance(self._conditions, Table):
            return None
        conditions = self._conditions.of(first, rows)["condition"]
        if isinstance(conditions[0], list):
            return np.asarray(conditions, self.spec.dtype)
        return np.asarray([self._labels.get(condition, condition) for condition in conditions])

    def _advance(self, rows: int) -> None:
        with self._lock:
            self._made += rows
            total, done, passed = self.spec.total, self._before + self._made, time.monotonic() - self._began
            rate = self._made / passed if passed > 0 else 0.0
            left = (total - done) / rate if rate > 0 else None
            fields = {"rows": done, "total": total, "rows_per_s": rate}
            self._tell(Progress(0, 0.0, done / total, left, fields))

    def result(self) -> Flow[BulkResult]:
        """Return the totals over all receipts.

        Raises:
            BulkIncomplete: Shards were given up; the others are done.
        """
        summary = yield Do(lambda: self._folder.summary(self.spec))
        if self._failed:
            (shard, why), *others = sorted(self._failed.items())
            more = f", and {len(others)} more" if others else ""
            raise BulkIncomplete(
                f"{self._folder.address}: shard {shard} was given up ({why}){more}; {summary.shards} are done; "
                "call again to make the rest",
                self._failed,
            )
        if lacking := self.spec.shards - summary.shards:
            raise BulkIncomplete(
                f"{self._folder.address}: {lacking} receipts were removed while the job ran; call again to make their "
                "shards"
            )
        yield Do(self._folder.store.clear)
        totals = {**vars(summary), "fingerprint": summary.fingerprint}
        return typed(BulkResult, {**vars(self.spec), **totals}, folder=Path(self._folder.address))


def _passes(error: PathlineError) -> bool:
    """Return whether another attempt at a shard may succeed."""
    if isinstance(error, APIError):
        return error.retryable or isinstance(error, ServerError | Unavailable | DeadlineExceeded)
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


def _request(
    spec: JobSpec, first: int, rows: int, members: Mapping[str, Any], timeout_s: float | None, url: str
) -> Any:
    options = {"version": spec.version, **members, "seed": spec.seed, "trace": "none"}
    options |= {"first_index": spec.first_index + first, "priority": "bulk", "timeout_s": timeout_s}
    return sample_request(spec.model, rows, options, url)


def bulk(
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
) -> Flow[BulkResult]:
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
    arguments = BulkArguments.of(model, total, counts, format, shard_rows, workers, tries, options)
    job = yield from _begin(calls, to, arguments)
    with following(progress or (lambda _: None)) as tell:
        job.follow(tell)
        yield Together([job.worker(tries) for _ in range(workers)], job.stop)
    return (yield from job.result())


def _begin(calls: Calls, to: str | PathLike[str], arguments: BulkArguments) -> Flow[BulkJob]:
    """Start a job, or resume the one in a folder.

    Raises:
        BulkConflict: The folder holds another job, or something else.
        InvalidValue: A new job needs a `total`.
        PathlineError: The service refuses the request.
        OSError: The folder cannot be read or written.
    """
    if "://" in str(to):
        raise InvalidValue(f"to={str(to)!r} is not a local folder; use `python -m fleet sample` for stores")
    folder = Folder(JobStore(Path(to).expanduser().absolute()))  # another working directory changes nothing
    spec = yield Do(folder.spec)
    if spec is None:
        arrays = yield from _fitted(calls, arguments, arguments.total, arguments.options.get("version"))
        started = arguments.table or (arrays if arrays.sources else None)
        spec = yield from _new(calls, arguments, started)
        yield Do(lambda: folder.create(spec, started))
    elif not spec.by_client:
        raise BulkConflict(f"{to} holds a job of `python -m fleet sample`; resume it with that, or choose a new folder")
    else:
        arguments.refuse_other(spec, (yield from _fitted(calls, arguments, spec.total, spec.version)))
    conditions = yield Do(lambda: folder.conditions(spec))
    table = isinstance(conditions, Table)
    labels = _labels((yield from calls.model(spec.model)), spec.version) if table else {}
    return BulkJob(calls, folder, spec, conditions, arguments, labels)


def _fitted(calls: Calls, arguments: BulkArguments, total: int | None, version: int | None) -> Flow[Arrays]:
    if total is None:
        raise InvalidValue("a new job needs total, or counts", "total")
    if not arguments.arrays:
        return Arrays({}, total)
    takes = yield from calls.conditions(arguments.model, version, arguments.options.get("timeout_s"))
    return arguments.fitted(total, takes)


def _new(calls: Calls, arguments: BulkArguments, conditions: RowConditions | None) -> Flow[JobSpec]:
    assert arguments.total is not None  # noqa: S101 - checked before
    spec = JobSpec(
        model=arguments.model,
        version=0,
        checkpoint="",
        path="",
        threads=0,  # decided by the service, as are the numbers of the solver
        noise="",
        request=arguments.request,
        plan="",
        seed=chosen_seed(arguments.options.get("seed")),
        first_index=integer("first_index", arguments.options.get("first_index", 0)),
        total=arguments.total,
        table=conditions.digest if isinstance(conditions, Table) else "",
        arrays=conditions.digests if isinstance(conditions, Arrays) else {},
        shape=(),
        dtype="float32",
        format=arguments.format or "npy",
        shard_rows=arguments.shard_rows or -(-arguments.total // BLOCK) * BLOCK,  # measured below
    )
    timeout_s, most = arguments.options.get("timeout_s"), min(_FIRST_PAGE, arguments.total)
    rows, version = min(BLOCK, most), arguments.options.get("version")
    while True:  # more and more of the first rows, until they take long enough to measure the service's speed
        started = time.monotonic()
        members = {**merged(spec.request, conditions, 0, rows), "version": version}
        try:
            first: SampleResult = yield from calls.sampled(_request(spec, 0, rows, members, timeout_s, calls.url))
        except (InvalidRequest, DeadlineExceeded) as error:
            if not _too_many(error) or rows == _LEAST_PAGE:
                raise
            rows = most = rows // 2
            continue
        seconds = max(time.monotonic() - started, 1e-6)
        version = first.version
        if first.solver.get("error_control") == "batch":
            message = "error_control 'batch' ties all samples together, so they cannot be split into shards"
            raise InvalidValue(message, "solver")
        if arguments.shard_rows is not None or seconds >= _PROBE_S or rows >= most:
            break
        rows = min(4 * rows, most)
    info = yield from calls.model(arguments.model)
    row_bytes = first.samples[0].nbytes + (0 if conditions is None else conditions.row_bytes)
    rate, least_bytes = rows / seconds, max(row_bytes, 1)
    with understood("the description of the model"):
        decided = {
            "version": first.version,
            "checkpoint": first.checkpoint,
            "path": info.served(first.version).get("path") or "",
            "noise": first.extra.get("noise", ""),
            "shape": first.samples.shape[1:],
            "dtype": str(first.samples.dtype),
            "columns": [column["name"] for column in first.extra.get("columns") or ()],
            "shard_rows": arguments.shard_rows or shard_rows(rate, spec.total, arguments.workers, least_bytes),
        }
        return typed(JobSpec, {**vars(spec), **decided})


def _labels(info: Any, version: int) -> dict[Any, int]:
    """Return the numbers that stand for named classes: the names themselves if all are numbers, else the labels."""
    names = ((info.served(version).get("conditions") or {}).get(ONE) or {}).get("names") or ()
    whole = {name: int(name) for name in names if _WHOLE.fullmatch(name)}
    if whole and len(whole) == len(names):
        return whole
    labels = {name: label for label, name in enumerate(names)}
    return {**labels, **{number: labels[name] for name, number in whole.items()}}
