"""Metrics of the service for Prometheus, in base units, under names that start with ``pathline_``.

Labels come from closed sets only: served models, the solver catalogue, status codes, route templates. All counters
start at 0, and so do the times of a model when it is loaded, so that a rate sees the first event.
``python -m service.metrics`` prints them all as a table.

They are plain numbers, put into the form of Prometheus when it asks. Each number has one thread that adds to it: the
event loop's or the engine's.
"""

import bisect
import math
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.job import JobResult
from service import VERSION
from service.errors import Kind
from solvers import catalogue

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

_FEW = 16
"""Up to this many values, counting one by one is faster than array operations."""


class Metric(NamedTuple):
    """A metric: how it counts, what, by which labels; for a histogram, the upper bounds of its buckets."""

    kind: str
    documentation: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


METRICS = {
    "requests": Metric(
        "counter",
        f"Finished requests; outcome is the status code, or {CLIENT_GONE} if the client left before the response.",
        ("route", "outcome"),
    ),
    "errors": Metric(
        "counter",
        "Error responses; type is the last part of the problem's type, explained at /problems/TYPE.",
        ("type", "status"),
    ),
    "request_seconds": Metric("histogram", "Total time of a request.", ("route",), SECONDS),
    "queue_seconds": Metric("histogram", "Time spent waiting for the engine.", ("model",), SECONDS),
    "solve_seconds": Metric("histogram", "Time in the engine.", ("model",), SECONDS),
    "network_seconds": Metric(
        "histogram", "Time of the network calls that a request took part in.", ("model",), SECONDS
    ),
    "prelude_seconds": Metric(
        "histogram", "Time of the calls of a prelude that a request took part in.", ("model",), SECONDS
    ),
    "decoder_seconds": Metric(
        "histogram", "Time of the calls of a decoder program that a request took part in.", ("model",), SECONDS
    ),
    "nfe": Metric("histogram", "Network evaluations of a sample.", ("model", "solver"), _NFE),
    "step_size": Metric(
        "histogram",
        "Accepted steps under error control, in units of t.",
        ("solver",),
        geometric(1e-5, 1.0, 10**0.25),
    ),
    "steps": Metric("counter", "Attempted steps: accepted or rejected.", ("solver", "result")),
    "batch_rows": Metric("histogram", "Rows of a network call.", _CALL, _POWERS),
    "batch_requests": Metric("histogram", "Requests that shared a network call.", _CALL, _POWERS),
    "batch_solvers": Metric("histogram", "Different solvers in a network call.", _CALL, (1, 2, 3, 4, 6, 8, 12, 16)),
    "refused_connections": Metric(
        "counter",
        f"Connections that the server refused or closed: {', '.join(REFUSALS)} (idle: to make room for a new one).",
        ("reason",),
    ),
    "queue_depth": Metric("gauge", "Requests waiting for the engine."),
    "work_seconds": Metric("gauge", "About how many seconds all requests in the engine take together."),
    "active_jobs": Metric("gauge", "Requests in the engine, waiting or running."),
    "active_lanes": Metric("gauge", "Samples being solved."),
    "job_bytes": Metric(
        "gauge",
        "Memory reserved for the states, steps and responses of all requests, up to PATHLINE_MAX_JOB_BYTES.",
    ),
    "cancelled_nfe": Metric("counter", "Network evaluations spent on samples that were cancelled."),
    "prelude_rows": Metric(
        "counter",
        "Rows of preludes, by whether their results were kept from an earlier request: hit or miss.",
        ("model", "result"),
    ),
    "model_loaded": Metric("gauge", "1 for each served version.", ("model", "version")),
    "model_path": Metric(
        "gauge",
        "1 for each served version, with the way its network is evaluated: fused, onnx or eager.",
        ("model", "version", "path"),
    ),
    "model_fallback": Metric(
        "gauge", "1 while an older version answers because the highest cannot be loaded.", ("model",)
    ),
    "device_info": Metric(
        "gauge",
        "1, with the device that runs the networks: torch's name for it (cpu, cuda:0) and the vendor's.",
        ("device", "name"),
    ),
    "build_info": Metric("gauge", "1, with the versions in use.", ("version", "python", "torch")),
}
"""All metrics by name."""


class Histogram(dict[tuple[str, ...], list[float]]):
    """A histogram: by labels, the count of values in each bucket and beyond the last, and at the end their sum."""

    def __init__(self, bounds: Iterable[float]) -> None:
        super().__init__()
        self.bounds = [float(bound) for bound in bounds]

    def __missing__(self, labels: tuple[str, ...]) -> list[float]:
        return self.setdefault(labels, [0] * (len(self.bounds) + 1) + [0.0])

    def one(self, value: float, *labels: str, times: int = 1) -> None:
        """Count one finite value `times` times; a value equal to a bound belongs below it, as `le` says."""
        series = self[labels]
        series[bisect.bisect_left(self.bounds, value)] += times
        series[-1] += times * value

    def add(self, values: ArrayLike, *labels: str) -> None:
        """Count each of `values` (any shape), skipping non-finite ones."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        if len(flat) <= _FEW:
            for value in flat.tolist():
                if math.isfinite(value):
                    self.one(value, *labels)
            return
        flat, series = flat[np.isfinite(flat)], self[labels]
        counts = np.bincount(np.searchsorted(self.bounds, flat, side="left"))
        for place in np.flatnonzero(counts).tolist():
            series[place] += int(counts[place])
        series[-1] += float(flat.sum())

    def total(self, *labels: str) -> tuple[int, float]:
        """Return the number and the sum of the values of a series."""
        *counts, total = self[labels]
        return int(sum(counts)), total


class Metrics(Collector):
    """All metrics of one service, in a registry of their own (several services can live in one process)."""

    def __init__(self) -> None:
        self.numbers: dict[str, defaultdict[tuple[str, ...], float]] = {
            name: defaultdict(float) for name, metric in METRICS.items() if metric.kind != "histogram"
        }
        self.histograms = {
            name: Histogram(metric.bounds) for name, metric in METRICS.items() if metric.kind == "histogram"
        }
        self._now: Mapping[str, Callable[[], float]] = {}
        numbers = self.numbers
        for kind in Kind:
            numbers["errors"][kind.slug, str(kind.status)] = 0
        for name, solver in catalogue.solvers().items():
            if solver.describe()["embedded_order"] is not None:  # it can run under error control
                numbers["steps"] |= {(name, "accepted"): 0, (name, "rejected"): 0}
        for reason in REFUSALS:
            numbers["refused_connections"][(reason,)] = 0
        for name, metric in METRICS.items():
            if not (metric.labels or metric.bounds):
                numbers[name][()] = 0
        numbers["build_info"][VERSION, platform.python_version(), str(torch.__version__)] = 1
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their values."""
        for name, read in self._now.items():
            self.numbers[name][()] = read()
        for name, metric in METRICS.items():
            about = f"pathline_{name}", metric.documentation
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(*about, labels=metric.labels)
                bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
                for labels, series in dict(self.histograms[name]).items():
                    *counts, total = series
                    histogram.add_metric(labels, list(zip(bounds, map(float, accumulate(counts)), strict=True)), total)
                yield histogram
                continue
            family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                *about, labels=metric.labels
            )
            for labels, value in dict(self.numbers[name]).items():
                family.add_metric(labels, value)
            yield family

    def expect(self, route: str, outcomes: Iterable[str]) -> None:
        """Start the counters of a route at 0, one for each of these outcomes and one for clients that leave."""
        for outcome in (*outcomes, CLIENT_GONE):
            self.numbers["requests"].setdefault((route, outcome), 0)

    def refused(self, reason: str) -> None:
        """Count a connection that was refused or closed for one of `REFUSALS`."""
        self.numbers["refused_connections"][(reason,)] += 1

    def runs_on(self, device: str, name: str) -> None:
        """Publish the device by torch's name and the vendor's."""
        self.numbers["device_info"][device, name] = 1

    def answered(self, route: str, outcome: str, seconds: float) -> None:
        """Count one finished request."""
        self.numbers["requests"][route, outcome] += 1
        self.histograms["request_seconds"].one(seconds, route)

    def failed(self, kind: Kind) -> None:
        """Count one error response."""
        self.numbers["errors"][kind.slug, str(kind.status)] += 1

    def solved(self, model: str, solver: str, result: JobResult) -> None:
        """Count one finished job."""
        calls, histograms = result.nfe, self.histograms
        first = int(calls[0])
        if np.logical_and.reduce(calls == first):  # as on one grid
            histograms["nfe"].one(first, model, solver, times=len(calls))
        else:
            histograms["nfe"].add(calls, model, solver)
        histograms["queue_seconds"].one(result.queue_s, model)
        histograms["solve_seconds"].one(result.solve_s, model)
        histograms["network_seconds"].one(result.network_s, model)
        if result.prelude_s is not None:
            histograms["prelude_seconds"].one(result.prelude_s, model)
        if result.decoder_s is not None:
            histograms["decoder_seconds"].one(result.decoder_s, model)

    def stepped(self, solver: str, h: ArrayLike, accepted: ArrayLike) -> None:
        """Count attempted steps of an adaptive solver: their sizes in t, and whether each was accepted."""
        taken = np.asarray(accepted, dtype=bool)
        self.histograms["step_size"].add(np.abs(np.asarray(h, dtype=np.float64))[taken], solver)
        self.numbers["steps"][solver, "accepted"] += int(taken.sum())
        self.numbers["steps"][solver, "rejected"] += int((~taken).sum())

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int = 1) -> None:
        """Count `calls` equal network calls: rows, requests that share each, and distinct solvers."""
        self.histograms["batch_rows"].one(rows, model, operation, times=calls)
        self.histograms["batch_requests"].one(requests, model, operation, times=calls)
        self.histograms["batch_solvers"].one(solvers, model, operation, times=calls)

    def model_is_loaded(self, name: str, version: int, loaded: bool, path: str) -> None:
        """Publish a served version and how its network is evaluated, or remove both; its model's times start at 0."""
        served, paths = self.numbers["model_loaded"], self.numbers["model_path"]
        if loaded:
            served[name, str(version)] = paths[name, str(version), path] = 1
            for seconds in ("queue_seconds", "solve_seconds", "network_seconds"):
                self.histograms[seconds].total(name)
            for result in ("hit", "miss"):
                self.numbers["prelude_rows"].setdefault((name, result), 0)
        else:
            del served[name, str(version)], paths[name, str(version), path]

    def falls_back(self, name: str, falls_back: bool) -> None:
        """Publish whether an older version of a model answers in place of the newest."""
        if falls_back:
            self.numbers["model_fallback"][(name,)] = 1
        else:
            del self.numbers["model_fallback"][(name,)]

    def prelude(self, model: str, hits: int, misses: int) -> None:
        """Count rows of a prelude whose results were kept, and rows that it computes."""
        self.numbers["prelude_rows"][model, "hit"] += hits
        self.numbers["prelude_rows"][model, "miss"] += misses

    def cancelled(self, nfe: int) -> None:
        """Count evaluations spent on cancelled samples."""
        self.numbers["cancelled_nfe"][()] += nfe

    def watch(self, **now: Callable[[], float]) -> None:
        """Read gauges of work in progress, by name, from these functions at every scrape."""
        self._now = now

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


def table() -> str:
    """Return the metrics as a Markdown table, one row each, as in docs/metrics.md."""
    rows = ["| metric | kind | labels | what it counts |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        total = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(metric.labels)
        rows.append(f"| `pathline_{name}{total}` | {metric.kind} | {labels} | {metric.documentation} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
