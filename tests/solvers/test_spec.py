"""Solvers as text: the table that every parser and formatter must follow, and different specs never print alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solvers import SolverError, SolverSpec, catalogue, compile, integrate  # noqa: A004
from solvers.grids import grid_text, normalise
from solvers.spec import read_solver
from tests.solvers.support import TUNED, decay, ones

TABLE = json.loads((Path(__file__).parent / "solver_text.json").read_text())


@pytest.mark.parametrize("case", TABLE["accepted"], ids=lambda case: case["text"])
def test_text_means_the_fields_of_the_table(case: dict[str, Any]) -> None:
    assert read_solver(case["text"]) == case["fields"]
    span = (1.0, 0.0) if "/(1," in case["text"] else (0.0, 1.0)
    spec = SolverSpec(**case["fields"], t_span=span)
    assert str(spec) == case["canonical"]
    assert SolverSpec(**read_solver(str(spec)), t_span=span) == spec
    assert compile(spec, torch.float64, TUNED).spec == spec


@pytest.mark.parametrize("case", TABLE["printed"], ids=lambda case: case["canonical"])
def test_fields_print_as_the_table_says(case: dict[str, Any]) -> None:
    spec = SolverSpec(**case["fields"])
    assert str(spec) == case["canonical"]
    assert SolverSpec.parse(str(spec)) == spec


@pytest.mark.parametrize("text", TABLE["refused"])
def test_text_that_is_refused(text: str) -> None:
    with pytest.raises(SolverError) as caught:
        SolverSpec.parse(text)
    assert caught.value.field in ("solver", "grid")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rk4--3", r"solver 'rk4--3' is not understood; use a name \(dopri5\), a name with steps \(rk4-20"),
        ("rk4", "rk4 has no error estimate and needs steps.*, for example rk4-20"),
        ("rk5-3", "unknown solver 'rk5'; use one of euler"),
        ("rk44-20", "unknown solver 'rk44'; use one of .*; did you mean 'rk4-20'?"),
        ("doprii5", "did you mean 'dopri5'?"),
        ("rk4@1e-5", "rk4 has no error estimate and takes no rtol"),
        ("rk4-20/cosine", "unknown grid 'cosine'; use one of uniform"),
        ("rk4-20/shift", "grid 'shift' needs 'value', from 0.001 to 1000"),
        ("rk4-20/uniform(1)", "grid 'uniform.1.' has too many numbers; write uniform, without parameters"),
        ("rk4-20/shift(3,4)", "too many numbers; write shift.value."),
        ("rk4-3/(0,x,1)", "write comma-separated numbers in parentheses"),
        ("rk4-4/(0,0.5,1)", "steps = 4, but the grid has 2 intervals"),
        ("dopri5+i+pi", "says controller twice; leave one of them out"),
        ("dopri5+fast", r"\+fast is not an option; use \+ramp, \+rk, \+linear, .*\+paper, .*\+max_nfe=500"),
        ("rk4-20+batch", "error_control is for error control"),
        ("rk4-20+rk", "start is for Adams-Bashforth methods"),
        ("dopri5@1e999", "rtol must be a finite number, got inf"),
    ],
)
def test_refusals_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(SolverError, match=words):
        compile(SolverSpec.parse(text))


def specs() -> st.SearchStrategy[SolverSpec]:
    """Any valid spec on the span from 0 to 1."""
    positive = st.floats(1e-7, 1.0)
    grids = st.one_of(
        st.sampled_from(["uniform", "sway", "logit_normal"]),
        st.floats(1e-3, 1e3).map(lambda value: {"name": "shift", "value": value}),
        st.tuples(st.floats(-10, 10), st.floats(0.01, 10)).map(
            lambda pair: {"name": "logit_normal", "mean": pair[0], "std": pair[1]}
        ),
    )
    times = st.lists(st.floats(1e-4, 0.999), max_size=5, unique=True).map(lambda inner: (0.0, *sorted(inner), 1.0))
    bound = st.sampled_from([10_000, 500, 20_000])
    one_step = st.sampled_from([name for name, each in catalogue.solvers().items() if not each.multistep_order])
    multistep = st.sampled_from([name for name, each in catalogue.solvers().items() if each.starts])
    adaptive = st.sampled_from([name for name, each in catalogue.solvers().items() if each.adaptive])
    steps = st.integers(1, 40)
    return st.one_of(
        st.builds(SolverSpec, solver=one_step, steps=steps, grid=grids, max_nfe=bound),
        st.builds(SolverSpec, solver=one_step, grid=times, max_nfe=bound),
        st.builds(SolverSpec, solver=multistep, steps=steps, grid=grids, start=st.sampled_from([None, "ramp", "rk"])),
        st.builds(
            SolverSpec,
            solver=adaptive,
            rtol=st.none() | positive,
            atol=st.none() | positive,
            controller=st.sampled_from([None, "paper", "i", "pi"]),
            error_control=st.sampled_from(["sample", "batch"]),
            first_step=st.none() | st.floats(1e-6, 0.01),
            max_step=st.none() | st.floats(0.01, 10.0),
            max_nfe=bound,
        ),
    )


@given(specs(), specs())
def test_what_is_printed_reads_back_and_what_differs_prints_differently(one: SolverSpec, other: SolverSpec) -> None:
    assert SolverSpec.parse(str(one)) == one
    assert SolverSpec.parse(str(one).upper()) == one
    assert (str(one) == str(other)) == (one == other)
    assert hash(SolverSpec.parse(str(one))) == hash(one)
    assert replace(one) == one


def test_defaults_are_filled_in() -> None:
    assert SolverSpec() == SolverSpec(rtol=1e-5) == SolverSpec(rtol=1e-5, atol=1e-5, controller="paper")
    assert SolverSpec("ab3", steps=5) == SolverSpec("ab3", steps=5, start="ramp")
    assert SolverSpec("euler", grid=[0, 0.5, 1]).steps == 2
    assert SolverSpec("rk4", steps=np.int64(5), t_span=np.array([0, 1])) == SolverSpec("rk4", steps=5)  # type: ignore[arg-type]
    assert not SolverSpec("rk4", steps=5).adaptive
    assert SolverSpec("rk4", steps=5, grid="shift(3)") == SolverSpec("rk4", steps=5, grid={"name": "shift", "value": 3})


def test_fields_beside_a_text_agree_or_are_refused_with_both_named() -> None:
    assert SolverSpec.of("rk4-20", steps=20, max_nfe=100) == SolverSpec("rk4", steps=20, max_nfe=100)
    assert SolverSpec.of("rk4-5/shift(3)", grid={"name": "shift", "value": 3.0}).grid == "shift(3)"
    assert SolverSpec.of("dopri5@1e-4", rtol=None, controller="pi").rtol == 1e-4
    for text, apart, words in [
        ("rk4-20", {"steps": 10}, "solver 'rk4-20' says steps = 20, but steps = 10 was given too; leave one of them"),
        ("dopri5@1e-5", {"atol": 1e-3}, "says atol = 1e-05, but atol = 0.001"),
        ("rk4-5/shift(3)", {"grid": "uniform"}, r"says grid = shift\(3\), but grid = uniform"),
        ("dopri5+batch", {"error_control": "sample"}, "says error_control = batch, but error_control = sample"),
    ]:
        with pytest.raises(SolverError, match=words) as caught:
            SolverSpec.of(text, **apart)
        assert caught.value.field == next(iter(apart))


def test_the_drivers_take_text() -> None:
    by_text = integrate(decay, ones(), solver="RK4-7/sway(-0.5)")
    by_fields = integrate(decay, ones(), solver="rk4", steps=7, grid={"name": "sway", "coefficient": -0.5})
    assert torch.equal(by_text.x, by_fields.x)
    assert by_text.settings == by_fields.settings


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-5, 0.05, 0.01, 2.5e-4, 1e3, 1e22, 1 / 3, 5e-324, 1.7e308, 123456.0])
def test_numbers_print_short_and_read_back(value: float) -> None:
    grid = (0.0, value, -value)
    text = grid_text(normalise(grid))
    assert read_solver(f"euler-2/{text}")["grid"] == [0.0, value, -value]
    assert all(len(part) <= len(repr(value)) + 1 for part in text.strip("()").split(","))
