"""Metrics of the service for Prometheus, in base units, under names that start with ``pathline_``.

Labels come from closed sets only: served models, the solver catalogue, status codes, route templates. All counters
start at 0, and so do the times of a model when it is loaded, so that a rate sees the first event.
``python -m service.metrics`` prints them all as a table.
"""

import bisect
import importlib.metadata
import math
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.job import JobResult
from service import VERSION
from service.errors import Kind
from solvers import catalogue

disable_created_metrics()  # they would double the series of every counter and add nothing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

CLIENT_GONE = "client_gone"

REFUSALS = ("bad-request", "head-too-large", "request-timeout", "too-many-connections", "idle", "slow-reader")
"""Reasons for which the server closes a connection: slugs of its problems, `idle` (to make room), `slow-reader`."""


def geometric(low: float, high: float, ratio: float) -> tuple[float, ...]:
    """Return bucket bounds from `low` to at least `high`, each about `ratio` times the last, rounded to 3 digits."""
    steps = int(np.ceil(np.log(high / low) / np.log(ratio)))
    return tuple(float(f"{low * ratio**k:.3g}") for k in range(steps + 1))


SECONDS = geometric(1e-4, 60.0, 1.4)
_POWERS = tuple(float(2**k) for k in range(18))
_NFE = (1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 100_000)
_CALL = ("model", "operation")
_STEP = geometric(1e-5, 1.0, 10**0.25)

_FEW = 16
"""Up to this many values, counting one by one is faster than array operations."""


class Histogram(Collector):
    """A labelled Prometheus histogram fed by arrays: one bincount for many values; thread-safe."""

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._list = [float(bound) for bound in bounds]
        self._bounds = np.array(self._list)
        self._names = [floatToGoString(bound) for bound in bounds] + ["+Inf"]
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], tuple[np.ndarray, float]] = {}
        if registry is not None:
            registry.register(self)

    def add(self, values: ArrayLike, *labels: str) -> None:
        """Count each of `values` (any shape), skipping non-finite ones.

        Raises:
            ValueError: The number of labels is not that of the histogram.
        """
        if len(labels) != len(self._labels):
            raise ValueError(f"{self._name} takes labels {self._labels}, got {labels}")
        flat = np.asarray(values, dtype=np.float64).ravel()
        if len(flat) <= _FEW and self._add_few(flat.tolist(), labels):
            return
        flat = flat[np.isfinite(flat)]
        # side="left": a value equal to a bound belongs below it, as `le` says
        bins = np.searchsorted(self._bounds, flat, side="left")
        counts = np.bincount(bins, minlength=len(self._names))
        with self._lock:
            old, total = self._series.get(labels, (0, 0.0))
            self._series[labels] = (counts + old, total + float(flat.sum()))

    def _add_few(self, values: Sequence[float], labels: tuple[str, ...]) -> bool:
        """Count values one by one; False if there is no series yet."""
        with self._lock:
            if (series := self._series.get(labels)) is None:
                return False
            counts, total = series
            if values and values.count(values[0]) == len(values):  # as the calls of samples on one grid
                counts[bisect.bisect_left(self._list, values[0])] += len(values) * math.isfinite(values[0])
                total, values = total + (sum(values) if math.isfinite(values[0]) else 0.0), ()
            for value in values:
                if math.isfinite(value):
                    counts[bisect.bisect_left(self._list, value)] += 1
                    total += value
            self._series[labels] = (counts, total)
            return True

    def one(self, value: float, *labels: str, times: int = 1) -> None:
        """Count one finite value `times` times; far cheaper than `add`."""
        place = bisect.bisect_left(self._list, value)
        with self._lock:
            series = self._series.get(labels)
            if series is not None:
                series[0][place] += times
                self._series[labels] = (series[0], series[1] + times * value)
                return
        self.add([value] * times, *labels)

    def total(self, *labels: str) -> tuple[int, float]:
        """Return the number and the sum of the values of a series."""
        with self._lock:
            counts, total = self._series.get(labels, (np.zeros(1), 0.0))
            return int(counts.sum()), total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family with all series: cumulative buckets and a sum."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            series = {labels: (counts.copy(), total) for labels, (counts, total) in self._series.items()}
        for labels, (counts, total) in series.items():
            cumulative = np.cumsum(counts).tolist()
            family.add_metric(labels, list(zip(self._names, map(float, cumulative), strict=True)), total)
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family without series, so that the registry can refuse a duplicate name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labels)


class Metrics:
    """All metrics of one service, in a registry of their own (several services can live in one process)."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "pathline_requests",
            f"Finished requests; outcome is the status code, or {CLIENT_GONE} if the client left before the response.",
            ("route", "outcome"),
            registry=registry,
        )
        self.errors = Counter(
            "pathline_errors",
            "Error responses; type is the last part of the problem's type, explained at /problems/TYPE.",
            ("type", "status"),
            registry=registry,
        )
        self._errors = {kind: self.errors.labels(kind.value.slug, str(kind.value.status)) for kind in Kind}
        self._answers: dict[tuple[str, str], Counter] = {}
        self.request_seconds = _histogram(registry, "request_seconds", "Total time of a request.", SECONDS, "route")
        self.queue_seconds = _histogram(
            registry, "queue_seconds", "Time spent waiting for the engine.", SECONDS, "model"
        )
        self.solve_seconds = _histogram(registry, "solve_seconds", "Time in the engine.", SECONDS, "model")
        self.network_seconds = _histogram(
            registry, "network_seconds", "Time of the network calls that a request took part in.", SECONDS, "model"
        )
        self.prelude_seconds = _histogram(
            registry, "prelude_seconds", "Time of the calls of a prelude that a request took part in.", SECONDS, "model"
        )
        self.decoder_seconds = _histogram(
            registry,
            "decoder_seconds",
            "Time of the calls of a decoder program that a request took part in.",
            SECONDS,
            "model",
        )
        self.nfe = _histogram(registry, "nfe", "Network evaluations of a sample.", _NFE, "model", "solver")
        self.step_size = _histogram(
            registry, "step_size", "Accepted steps under error control, in units of t.", _STEP, "solver"
        )
        self.steps = Counter(
            "pathline_steps", "Attempted steps: accepted or rejected.", ("solver", "result"), registry=registry
        )
        for name, solver in catalogue.solvers().items():
            if solver.describe()["embedded_order"] is not None:  # it can run under error control
                self.steps.labels(name, "accepted")
                self.steps.labels(name, "rejected")
        self.batch_rows = _histogram(registry, "batch_rows", "Rows of a network call.", _POWERS, *_CALL)
        self.batch_requests = _histogram(
            registry, "batch_requests", "Requests that shared a network call.", _POWERS, *_CALL
        )
        self.batch_solvers = _histogram(
            registry, "batch_solvers", "Different solvers in a network call.", (1, 2, 3, 4, 6, 8, 12, 16), *_CALL
        )
        self.refusals = Counter(
            "pathline_refused_connections",
            f"Connections that the server refused or closed: {', '.join(REFUSALS)} (idle: to make room for a new one).",
            ("reason",),
            registry=registry,
        )
        for reason in REFUSALS:
            self.refusals.labels(reason)
        self.queue_depth = _gauge(registry, "queue_depth", "Requests waiting for the engine.")
        self.work_seconds = _gauge(
            registry, "work_seconds", "About how many seconds all requests in the engine take together."
        )
        self.active_jobs = _gauge(registry, "active_jobs", "Requests in the engine, waiting or running.")
        self.active_lanes = _gauge(registry, "active_lanes", "Samples being solved.")
        self.job_bytes = _gauge(
            registry,
            "job_bytes",
            "Memory reserved for the states, steps and responses of all requests, up to PATHLINE_MAX_JOB_BYTES.",
        )
        self.cancelled_nfe = Counter(
            "pathline_cancelled_nfe", "Network evaluations spent on samples that were cancelled.", registry=registry
        )
        self.prelude_rows = Counter(
            "pathline_prelude_rows",
            "Rows of preludes, by whether their results were kept from an earlier request: hit or miss.",
            ("model", "result"),
            registry=registry,
        )
        self.model_loaded = Gauge(
            "pathline_model_loaded", "1 for each served version.", ("model", "version"), registry=registry
        )
        self.model_path = Gauge(
            "pathline_model_path",
            "1 for each served version, with the way its network is evaluated: fused, onnx or eager.",
            ("model", "version", "path"),
            registry=registry,
        )
        self.model_fallback = Gauge(
            "pathline_model_fallback",
            "1 while an older version answers because the highest cannot be loaded.",
            ("model",),
            registry=registry,
        )
        self.device_info = Gauge(
            "pathline_device_info",
            "1, with the device that runs the networks: torch's name for it (cpu, cuda:0) and the vendor's.",
            ("device", "name"),
            registry=registry,
        )
        self.build_info = Gauge(
            "pathline_build_info", "1, with the versions in use.", ("version", "python", "torch"), registry=registry
        )
        self.build_info.labels(VERSION, platform.python_version(), importlib.metadata.version("torch")).set(1)
        ProcessCollector(registry=registry)

    def expect(self, route: str, outcomes: Iterable[str]) -> None:
        """Start the counters of a route at 0, one for each of these outcomes and one for clients that leave."""
        for outcome in (*outcomes, CLIENT_GONE):
            self.requests.labels(route, outcome)

    def refused(self, reason: str) -> None:
        """Count a connection that was refused or closed for one of `REFUSALS`."""
        self.refusals.labels(reason).inc()

    def runs_on(self, device: str, name: str) -> None:
        """Publish the device by torch's name and the vendor's."""
        self.device_info.labels(device, name).set(1)

    def answered(self, route: str, outcome: str, seconds: float) -> None:
        """Count one finished request."""
        counter = self._answers.get((route, outcome))  # finding it by its labels takes longer than counting
        if counter is None:
            counter = self._answers[route, outcome] = self.requests.labels(route, outcome)
        counter.inc()
        self.request_seconds.one(seconds, route)

    def failed(self, kind: Kind) -> None:
        """Count one error response."""
        self._errors[kind].inc()

    def solved(self, model: str, solver: str, result: JobResult) -> None:
        """Count one finished job."""
        self.nfe.add(result.nfe, model, solver)
        self.queue_seconds.one(result.queue_s, model)
        self.solve_seconds.one(result.solve_s, model)
        self.network_seconds.one(result.network_s, model)
        if result.prelude_s is not None:
            self.prelude_seconds.one(result.prelude_s, model)
        if result.decoder_s is not None:
            self.decoder_seconds.one(result.decoder_s, model)

    def stepped(self, solver: str, h: ArrayLike, accepted: ArrayLike) -> None:
        """Count attempted steps of an adaptive solver: their sizes in t, and whether each was accepted."""
        taken = np.asarray(accepted, dtype=bool)
        self.step_size.add(np.abs(np.asarray(h, dtype=np.float64))[taken], solver)
        self.steps.labels(solver, "accepted").inc(int(taken.sum()))
        self.steps.labels(solver, "rejected").inc(int((~taken).sum()))

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int = 1) -> None:
        """Count `calls` equal network calls: rows, requests that share each, and distinct solvers."""
        self.batch_rows.one(rows, model, operation, times=calls)
        self.batch_requests.one(requests, model, operation, times=calls)
        self.batch_solvers.one(solvers, model, operation, times=calls)

    def model_is_loaded(self, name: str, version: int, loaded: bool, path: str) -> None:
        """Publish a served version and how its network is evaluated, or remove both; its model's times start at 0."""
        if loaded:
            self.model_loaded.labels(name, str(version)).set(1)
            self.model_path.labels(name, str(version), path).set(1)
            for seconds in (self.queue_seconds, self.solve_seconds, self.network_seconds):
                seconds.add([], name)
            self.prelude(name, 0, 0)
        else:
            self.model_loaded.remove(name, str(version))
            self.model_path.remove(name, str(version), path)

    def falls_back(self, name: str, falls_back: bool) -> None:
        """Publish whether an older version of a model answers in place of the newest."""
        if falls_back:
            self.model_fallback.labels(name).set(1)
        else:
            self.model_fallback.remove(name)

    def prelude(self, model: str, hits: int, misses: int) -> None:
        """Count rows of a prelude whose results were kept, and rows that it computes."""
        for result, rows in (("hit", hits), ("miss", misses)):
            self.prelude_rows.labels(model, result).inc(rows)

    def cancelled(self, nfe: int) -> None:
        """Count evaluations spent on cancelled samples."""
        self.cancelled_nfe.inc(nfe)

    def watch(
        self,
        queue_depth: Callable[[], float],
        work_seconds: Callable[[], float],
        jobs: Callable[[], float],
        lanes: Callable[[], float],
        job_bytes: Callable[[], float],
    ) -> None:
        """Read the gauges of work in progress from these functions at every scrape."""
        self.queue_depth.set_function(queue_depth)
        self.work_seconds.set_function(work_seconds)
        self.active_jobs.set_function(jobs)
        self.active_lanes.set_function(lanes)
        self.job_bytes.set_function(job_bytes)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


def _histogram(
    registry: CollectorRegistry, name: str, documentation: str, bounds: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(f"pathline_{name}", documentation, bounds, labels, registry)


def _gauge(registry: CollectorRegistry, name: str, documentation: str) -> Gauge:
    return Gauge(f"pathline_{name}", documentation, registry=registry)


def table() -> str:
    """Return the metrics as a Markdown table, one row each, as in docs/metrics.md."""
    metrics = Metrics()
    rows = ["| metric | kind | labels | what it counts |", "|---|---|---|---|"]
    for attribute, collector in vars(metrics).items():
        if attribute == "registry" or attribute.startswith("_"):
            continue
        [family] = collector.describe()
        labels = getattr(collector, "_labelnames", None) or getattr(collector, "_labels", ())
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
