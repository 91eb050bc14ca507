"""Plans resolved from requests, and every contradiction in a request."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from solvers import SolverError, catalogue, integrate, resolve
from tests.solvers.support import ADAPTIVE, Watched, decay, ones


def test_a_method_with_an_estimate_is_adaptive_unless_steps_are_given() -> None:
    for solver in ADAPTIVE:
        assert resolve(solver=solver).adaptive
        assert resolve(solver=solver, rtol=1e-3).adaptive
        assert not resolve(solver=solver, steps=3).adaptive
        assert not resolve(solver=solver, grid=[0.0, 0.4, 1.0]).adaptive


def test_defaults_as_resolved() -> None:
    assert resolve().settings == {
        "name": "dopri5",
        "rtol": 1e-5,
        "atol": 1e-5,
        "controller": "paper",
        "error_control": "sample",
        "first_step": None,
        "max_step": None,
        "max_nfe": 10_000,
        "text": "dopri5@1e-5",
    }
    assert resolve(solver="rk4", steps=20).settings == {
        "name": "rk4",
        "steps": 20,
        "grid": "uniform",
        "max_nfe": 10_000,
        "text": "rk4-20",
    }
    assert resolve(solver="ab3", steps=20).settings["start"] == "ramp"


@pytest.mark.parametrize("name", catalogue.solvers())
def test_settings_are_json_and_resolve_to_the_same(name: str) -> None:
    grids: list[Any] = ["uniform", {"name": "shift", "value": 3.0}, [0.0, 0.25, 1.0]]
    for grid in grids:
        plan = resolve(solver=name, steps=2, grid=grid, max_nfe=np.int64(50))  # type: ignore[arg-type]
        settings = json.loads(json.dumps(plan.settings))
        assert resolve(solver=settings.pop("text")).settings == plan.settings
        again = resolve(solver=settings.pop("name"), **settings)
        assert again.settings == plan.settings
    if catalogue.find(name).adaptive:
        steps: Any = {"first_step": np.float32(0.5), "max_step": np.float32(0.5), "max_nfe": np.int64(50)}
        solve = resolve(solver=name, rtol=np.float64(1e-4), **steps)
        settings = json.loads(json.dumps(solve.settings))
        assert resolve(solver=settings.pop("text")).settings == solve.settings
        assert resolve(solver=settings.pop("name"), **settings) is solve


def test_equal_requests_share_one_result() -> None:
    assert resolve(solver="rk4", steps=7) is resolve(solver="rk4", steps=7)
    assert resolve(rtol=1e-4) is resolve(rtol=1e-4, atol=1e-5)
    assert resolve(solver="rk4", steps=7) is not resolve(solver="rk4", steps=8)
    assert hash(resolve(solver="rk4", steps=7)) == hash(resolve(solver="rk4", steps=7))


def test_answers_cannot_spoil_the_shared_settings() -> None:
    integrate(decay, ones(), solver="rk4", steps=7).settings["name"] = "spoiled"
    assert resolve(solver="rk4", steps=7).settings["name"] == "rk4"


def test_bounds() -> None:
    assert resolve(solver="bosh3", steps=10).nfe_bound == 30
    assert resolve(max_nfe=77).nfe_bound == 77


def test_most_steps() -> None:
    assert resolve(solver="rk4", steps=7).max_attempts == 7
    assert resolve(max_nfe=100).max_attempts == 100 // 6
    assert resolve(max_nfe=2).max_attempts == 1


def test_one_interface_for_grids_and_error_control() -> None:
    plan, adaptive = resolve(solver="ab3", steps=5, start="rk"), resolve(error_control="batch", max_nfe=90)
    assert (plan.name, plan.adaptive, plan.batch, plan.nfe, plan.nfe_least, plan.nfe_bound) == (
        "ab3",
        False,
        False,
        7,
        7,
        7,
    )
    assert (adaptive.name, adaptive.adaptive, adaptive.batch, adaptive.nfe) == ("dopri5", True, True, None)
    assert (adaptive.nfe_least, adaptive.nfe_bound, adaptive.times) == (8, 90, None)
    assert plan.t_span == adaptive.t_span == (0.0, 1.0)
    assert (str(plan.spec), str(adaptive.spec)) == ("ab3-5+rk", "dopri5@1e-5+batch+max_nfe=90")


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"solver": "rk5"}, "solver", r"unknown solver 'rk5'; use one of euler, .*ab4"),
    ({"solver": None}, "solver", "unknown solver None"),
    ({"solver": ["rk4"]}, "solver", r"unknown solver \['rk4'\]"),
    ({"solver": "rk4"}, "steps", "rk4 has no error estimate and needs steps"),
    ({"solver": "ab2"}, "steps", "ab2 has no error estimate and needs steps"),
    ({"solver": "rk4", "steps": 5, "rtol": 1e-3}, "rtol", "rk4 has no error estimate and takes no rtol; give steps"),
    ({"solver": "rk4", "atol": 1e-3}, "atol", "rk4 has no error estimate and takes no atol; give steps"),
    ({"steps": 5, "rtol": 1e-3}, "steps", "steps .* and rtol contradict each other; give one of them"),
    ({"steps": 5, "atol": 1e-3}, "steps", "steps .* and atol contradict"),
    ({"grid": [0.0, 1.0], "atol": 1e-3}, "steps", "a list of times.* and atol contradict"),
    ({"grid": "sway"}, "grid", "a grid needs fixed steps; give dopri5 steps, or leave grid out"),
    ({"solver": "rk4", "steps": 0}, "steps", "steps must be a whole number of at least 1, got 0"),
    ({"solver": "rk4", "steps": -3}, "steps", "at least 1, got -3"),
    ({"solver": "rk4", "steps": 2.0}, "steps", "whole number of at least 1, got 2.0"),
    ({"solver": "rk4", "steps": "2"}, "steps", "whole number of at least 1, got '2'"),
    ({"solver": "rk4", "steps": True}, "steps", "whole number of at least 1, got True"),
    ({"solver": "rk4", "steps": 10**9}, "steps", "steps = 1000000000 is over the limit of 10000000"),
    (
        {"solver": "rk4", "steps": 2501},
        "max_nfe",
        "takes 10004 calls .* over max_nfe = 10000; raise max_nfe or take fewer",
    ),
    ({"rtol": 0.0}, "rtol", "rtol = 0 is below the floor of 1e-07 for float32; raise it"),
    ({"atol": -1e-3}, "atol", "atol = -0.001 is below the floor of 1e-07"),
    ({"rtol": 9e-8}, "rtol", "rtol = 9e-08 is below the floor of 1e-07 for float32"),
    ({"rtol": 9e-15, "dtype": torch.float64}, "rtol", "rtol = 9e-15 is below the floor of 1e-14 for float64"),
    ({"rtol": math.nan}, "rtol", "rtol must be a finite number, got nan"),
    ({"atol": math.inf}, "atol", "atol must be a finite number, got inf"),
    ({"rtol": "1e-3"}, "rtol", "rtol must be a finite number, got '1e-3'"),
    ({"rtol": True}, "rtol", "rtol must be a finite number, got True"),
    ({"controller": "pid"}, "controller", "unknown controller 'pid'; use one of paper, i, pi"),
    ({"controller": ["i"]}, "controller", "unknown controller"),
    ({"error_control": "lane"}, "error_control", "unknown error_control 'lane'; use one of sample, batch"),
    ({"first_step": 0.0}, "first_step", "positive and at most the span 1, got 0.0"),
    ({"first_step": -0.1}, "first_step", "got -0.1"),
    ({"first_step": 1.5}, "first_step", "at most the span 1, got 1.5"),
    ({"first_step": math.nan}, "first_step", "got nan"),
    ({"first_step": "0.1"}, "first_step", "got '0.1'"),
    ({"first_step": 0.3, "max_step": 0.2}, "first_step", "first_step = 0.3 is over max_step = 0.2; make it shorter"),
    *(
        ({"max_step": wrong}, "max_step", "must be a finite positive number, got .*; leave it out for no bound")
        for wrong in (0.0, -0.1, math.inf, math.nan, "0.1", True, [0.1], 10**400)
    ),
    (
        {"max_step": 1e-4},
        "max_step",
        "max_step = 0.0001 takes dopri5 at least 60002 calls from 0 to 1, over max_nfe = 10000; raise one of them",
    ),
    ({"max_step": 5e-324}, "max_step", "takes dopri5 more calls than can be counted from 0 to 1"),
    ({"solver": "bosh3", "max_step": 0.1, "max_nfe": 31}, "max_step", "takes bosh3 at least 32 calls"),
    (
        {"solver": "rk4", "steps": 3, "max_step": 0.1},
        "max_step",
        "with fixed steps leave it out: the grid sets their length",
    ),
    (
        {"solver": "rk4", "steps": 3, "controller": "i"},
        "controller",
        "controller is for error control; .* leave it",
    ),
    ({"solver": "rk4", "steps": 3, "first_step": 0.1}, "first_step", "first_step is for error control"),
    ({"solver": "rk4", "steps": 3, "error_control": "batch"}, "error_control", "error_control is for error control"),
    (
        {"solver": "rk4", "steps": 3, "start": "rk"},
        "start",
        "start is for Adams-Bashforth methods; rk4 has none; leave",
    ),
    ({"start": "ramp"}, "start", "start is for Adams-Bashforth methods"),
    ({"max_nfe": 0}, "max_nfe", "max_nfe must be a whole number of at least 1, got 0"),
    ({"max_nfe": 1e4}, "max_nfe", "max_nfe must be a whole number of at least 1, got 10000.0"),
    ({"t_span": (0.0, 0.0)}, "t_span", "starts and ends at 0; the ends must differ"),
    ({"t_span": (0.0, math.inf)}, "t_span", r"two finite numbers \(start, end\), got \[0.0, inf\]"),
    ({"t_span": (math.nan, 1.0)}, "t_span", "two finite numbers"),
    ({"t_span": (0.0, 0.5, 1.0)}, "t_span", "two finite numbers"),
    ({"t_span": ("0", "1")}, "t_span", "two finite numbers"),
    ({"t_span": 1.0}, "t_span", "two finite numbers .* got 1.0"),
    ({"t_span": None}, "t_span", "two finite numbers .* got None"),
]


@pytest.mark.parametrize(("request_", "field", "words"), BAD, ids=lambda value: str(value)[:50])
def test_bad_requests_name_the_value_and_the_remedy(request_: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        resolve(**request_)
    assert caught.value.field == field
    if "dtype" not in request_:
        watched = Watched(decay)
        with pytest.raises(SolverError, match=words):
            integrate(watched, ones(dtype=torch.float32), **request_)
        assert watched.calls == 0


def test_the_floors_themselves_are_allowed() -> None:
    assert resolve(rtol=1e-7, atol=1e-7).adaptive
    assert resolve(rtol=1e-14, atol=1e-14, dtype=torch.float64).adaptive
    assert not resolve(solver="euler", steps=10_000).adaptive
