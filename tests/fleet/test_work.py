"""Dispatched work: it counts from the moment of dispatch, and the least loaded place comes first."""

import io
import json
import random
from typing import Any

import numpy as np
import pytest

from fleet.work import Dispatched, _known_nfe, work_of
from solvers import SolverSpec, plan


@pytest.mark.parametrize(
    ("body", "work"),
    [
        ({"num_samples": 10, "solver": "rk4-5"}, 200),
        ({"num_samples": 10, "solver": "rk4", "steps": 5}, 200),
        ({"num_samples": 10, "solver": "rk4-5", "guidance": 2.0}, 400),
        ({"num_samples": 10, "solver": "rk4-5", "guidance": 1}, 200),
        ({"num_samples": 10, "solver": "rk4-5", "guidance": {"strength": 2.0}}, 400),
        ({"num_samples": 10, "solver": "rk4-5", "guidance": {"terms": [{"weight": 1}] * 3}}, 600),
        ({"num_samples": 10, "solver": "rk4-5", "guidance": {"terms": 3}}, 1),
        ({"solver": "euler-1"}, 256),
        ({"num_samples": 2}, 120),
        ({"num_samples": "two", "solver": "rk4-5"}, 1),
        ({"solver": "rk5"}, 1),
        ([], 1),
        ("text", 1),
    ],
)
def test_work_is_rows_times_calls(body: Any, work: float) -> None:
    assert work_of("/v1/sample", json.dumps(body).encode()) == work
    assert work_of("/pathline/v1/sample/stream", json.dumps(body).encode()) == work


def test_solver_settings_that_repeat_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_ = plan.compile

    def counted(spec: SolverSpec) -> plan.Plan:
        compiled.append(spec)
        return compile_(spec)

    monkeypatch.setattr(plan, "compile", counted)
    for seed in range(5):
        for steps in (7301, 7302):  # (other tests do not use them)
            body = {"num_samples": seed + 1, "solver": "euler", "steps": steps, "seed": seed}
            assert work_of("/v1/sample", json.dumps(body).encode()) == (seed + 1) * steps
    assert [spec.steps for spec in compiled] == [7301, 7302]


def test_long_solver_settings_are_not_remembered() -> None:
    times = [step / 500 for step in range(501)]
    body = json.dumps({"num_samples": 2, "solver": "euler", "grid": times}).encode()
    before = _known_nfe.cache_info().currsize
    assert work_of("/v1/sample", body) == work_of("/v1/sample", body) == 1000
    assert _known_nfe.cache_info().currsize == before


def test_the_arrays_of_a_body_are_no_work() -> None:
    body = io.BytesIO()
    members = json.dumps({"num_samples": 10, "solver": "rk4-5"})
    np.savez(body, request=np.array(members), **{"conditions.text": np.zeros(1 << 18)})  # type: ignore[arg-type]
    assert work_of("/v1/sample", body.getvalue()) == 200
    assert work_of("/v1/sample", body.getvalue()[:-100]) == 1
    assert work_of("/v1/sample", b"PK") == 1


def test_other_routes_and_bad_json_count_as_little_work() -> None:
    assert work_of("/v1/models", b"") == 1
    assert work_of("/v1/sample", b"{") == 1
    assert work_of("/v1/sample", b"x" * (1 << 24)) == 1 << 20


def test_the_least_loaded_comes_first_and_finished_work_does_not_count() -> None:
    found = Dispatched()
    found.send("1", "a", 5)
    found.send("2", "b", 3)
    assert found.order("abc") == ["c", "b", "a"]
    found.done("1")
    found.done("1")
    assert found.order("abc") == ["a", "c", "b"]
    assert found.work("a") == 0


def test_a_reservation_that_is_never_sent_is_forgotten() -> None:
    now = [0.0]
    found = Dispatched(lambda: now[0])
    found.reserve("1", "a", 5)
    found.reserve("2", "b", 3)
    found.send("2", "c", 3)  # another one took it
    assert found.order("abc") == ["b", "c", "a"]
    now[0] = 2.0
    assert found.order("abc") == ["a", "b", "c"]


def test_least_work_waits_less_than_fewest_requests() -> None:
    """Eight places at load 0.8, one request in ten a hundred times as large; the same arrivals for both rules."""

    def waited(least_work: bool) -> list[float]:
        chance, ends, took, now = random.Random(0), [0.0] * 8, [], 0.0
        counted, under_way = Dispatched(), list[tuple[float, str]]()
        for number in range(4000):
            now += chance.expovariate(0.8 * 8 / 10.9)
            work = 100.0 if chance.random() < 0.1 else 1.0
            for end, name in [each for each in under_way if each[0] <= now]:
                under_way.remove((end, name))
                counted.done(name)
            place = counted.order(range(8))[0]
            counted.send(str(number), place, work if least_work else 1.0)
            ends[place] = max(now, ends[place]) + work
            under_way.append((ends[place], str(number)))
            took.append(ends[place] - now - work)
        return sorted(took)

    by_work, by_count = waited(True), waited(False)
    assert by_work[3960] < 0.7 * by_count[3960]
    assert sum(by_work) < 0.9 * sum(by_count)
