"""Threads of a network if the settings name no number."""

import math
import os

import pytest

from engine.device import default_threads


@pytest.fixture(autouse=True)
def quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device.cpu_quota", lambda: math.inf)


@pytest.mark.parametrize(("cores", "threads"), [({0}, 1), ({0, 1}, 1), ({2, 5, 7}, 2), (set(range(64)), 63)])
def test_one_for_each_core_that_may_be_used_but_one(
    cores: set[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    assert default_threads() == threads


@pytest.mark.parametrize(("count", "threads"), [(None, 1), (1, 1), (8, 7)])
def test_where_the_system_does_not_say_which(count: int | None, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert default_threads() == threads


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1.0, 1), (2.5, 1), (4.0, 3), (64.0, 7), (math.inf, 7)])
def test_no_more_than_the_quota_of_a_container_grants(
    quota: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("engine.device.cpu_quota", lambda: quota)
    assert default_threads() == threads
