"""Histograms fed by arrays count what prometheus_client's own would."""

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from service.histograms import Histogram, geometric

BOUNDS = (0.1, 1.0, 10.0)


def test_as_the_reference_counts() -> None:
    values = [0.05, 0.1, 0.100001, 1.0, 5.0, 10.0, 11.0, 1e9]
    mine, other = CollectorRegistry(), CollectorRegistry()
    whole = Histogram("x", "text", BOUNDS, ("model",), mine)
    reference = prometheus_client.Histogram("x", "text", ("model",), registry=other, buckets=BOUNDS)
    whole.add(values[:5], "a")
    for value in values[5:]:
        whole.one(value, "a")
    for value in values:
        reference.labels("a").observe(value)
    for bound in ("0.1", "1.0", "10.0", "+Inf"):
        labels = {"model": "a", "le": bound}
        assert mine.get_sample_value("x_bucket", labels) == other.get_sample_value("x_bucket", labels)
    for name in ("x_count", "x_sum"):
        assert mine.get_sample_value(name, {"model": "a"}) == other.get_sample_value(name, {"model": "a"})


def test_first_value_may_come_alone() -> None:
    registry = CollectorRegistry()
    Histogram("x", "text", BOUNDS, registry=registry).one(0.5)
    assert registry.get_sample_value("x_bucket", {"le": "1.0"}) == 1
    assert registry.get_sample_value("x_sum") == 0.5


def test_what_is_not_finite_is_left_out() -> None:
    registry = CollectorRegistry()
    Histogram("x", "text", BOUNDS, registry=registry).add(np.array([np.nan, np.inf, 0.5]))
    assert registry.get_sample_value("x_count") == 1
    assert registry.get_sample_value("x_sum") == 0.5


def test_nothing_is_a_valid_array() -> None:
    registry = CollectorRegistry()
    Histogram("x", "text", BOUNDS, registry=registry).add([])
    assert registry.get_sample_value("x_count") == 0


def test_wrong_labels() -> None:
    with pytest.raises(ValueError, match="takes labels"):
        Histogram("x", "text", BOUNDS, ("model",)).add([1.0])


def test_a_name_is_registered_once() -> None:
    registry = CollectorRegistry()
    Histogram("x", "text", BOUNDS, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("x", "text", BOUNDS, registry=registry)


def test_geometric_bounds() -> None:
    bounds = geometric(1e-4, 60.0, 1.4)
    assert bounds[0] == 1e-4
    assert bounds[-2] < 60 <= bounds[-1]
    ratios = np.array(bounds[1:]) / np.array(bounds[:-1])
    assert ratios.min() > 1.38
    assert ratios.max() < 1.42
