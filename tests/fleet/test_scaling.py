"""Autoscaling by work, without Ray: the metric that replicas report, and the number that the policy requests."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.scaling import METRIC, ByWork


def wanted(target_s: float, **seconds: float) -> float:
    context: Any = SimpleNamespace(aggregated_metrics={METRIC: seconds}, target_num_replicas=3)
    return ByWork(target_s)(context)[0]


def test_each_replica_gets_its_share_of_the_work() -> None:
    assert wanted(2.0, a=9.0, b=1.0) == 5.0
    assert wanted(2.0, a=0.0, b=0.0) == 0.0  # Ray keeps the least number
    assert wanted(0.5, a=1.0) == 2.0


def test_nothing_changes_before_replicas_have_reported() -> None:
    assert wanted(2.0) == 3
    silent: Any = SimpleNamespace(aggregated_metrics=None, target_num_replicas=2)
    assert ByWork(1.0)(silent) == (2, {})


def test_a_target_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="target_s is 0; it must be above 0"):
        ByWork(0)
