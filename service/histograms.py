"""Histograms that take whole arrays: one bincount for many values instead of one call for each."""

import bisect
import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


def geometric(low: float, high: float, ratio: float) -> tuple[float, ...]:
    """Return bucket bounds from `low` to at least `high`, each about `ratio` times the last, 3 digits each."""
    steps = int(np.ceil(np.log(high / low) / np.log(ratio)))
    return tuple(float(f"{low * ratio**k:.3g}") for k in range(steps + 1))


class Histogram(Collector):
    """A labelled Prometheus histogram fed by arrays; safe to use from any thread."""

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
        """Count each of `values` (any shape); what is not finite is left out.

        Raises:
            ValueError: The number of labels is not that of the histogram.
        """
        if len(labels) != len(self._labels):
            raise ValueError(f"{self._name} takes labels {self._labels}, got {labels}")
        flat = np.asarray(values, dtype=np.float64).ravel()
        flat = flat[np.isfinite(flat)]
        # side="left": a value equal to a bound belongs below it, as `le` says
        bins = np.searchsorted(self._bounds, flat, side="left")
        counts = np.bincount(bins, minlength=len(self._names))
        with self._lock:
            old, total = self._series.get(labels, (0, 0.0))
            self._series[labels] = (counts + old, total + float(flat.sum()))

    def one(self, value: float, *labels: str, times: int = 1) -> None:
        """Count one finite value, once or more often; far cheaper than `add`."""
        place = bisect.bisect_left(self._list, value)
        with self._lock:
            series = self._series.get(labels)
            if series is not None:
                series[0][place] += times
                self._series[labels] = (series[0], series[1] + times * value)
                return
        self.add([value] * times, *labels)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family with all series, as Prometheus wants it: cumulative buckets and a sum."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            series = {labels: (counts.copy(), total) for labels, (counts, total) in self._series.items()}
        for labels, (counts, total) in series.items():
            cumulative = np.cumsum(counts).tolist()
            family.add_metric(labels, list(zip(self._names, map(float, cumulative), strict=True)), total)
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family without series, so that the registry can refuse a second one of this name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
