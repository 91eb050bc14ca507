"""Solvers as text, tested on the table of examples that every parser and formatter must follow."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pathline import InvalidValue
from pathline._solver_text import expand_solver, format_solver, parse_solver

TABLE = json.loads((Path(__file__).parents[1] / "solvers" / "solver_text.json").read_text())


@pytest.mark.parametrize("row", TABLE["accepted"], ids=lambda row: row["text"].strip())
def test_text_gives_fields_and_fields_give_the_canonical_text(row: dict[str, Any]) -> None:
    assert parse_solver(row["text"]) == row["fields"]
    full = parse_solver(row["canonical"])
    assert format_solver(full) == row["canonical"]
    assert format_solver({**full, **row["fields"]}) == row["canonical"]


@pytest.mark.parametrize("row", TABLE["printed"], ids=lambda row: row["canonical"])
def test_fields_that_no_text_gives_are_printed_too(row: dict[str, Any]) -> None:
    assert format_solver(row["fields"]) == row["canonical"]


@pytest.mark.parametrize("text", TABLE["refused"])
def test_what_is_no_solver_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_solver(text)
    assert caught.value.field == "solver"
    assert repr(text) in str(caught.value)


def test_what_is_printed_reads_back_equal() -> None:
    rng = random.Random(0)
    for _ in range(500):
        number = rng.choice([rng.random(), 10 ** rng.uniform(-9, 6), float(f"{rng.random():.2g}")])
        for fields in (
            {"solver": "tsit5", "rtol": number, "atol": rng.random(), "max_step": number},
            {"solver": "rk4", "steps": 2, "grid": [0, number, 1]},
            {"solver": "ab2", "steps": 9, "grid": {"name": "logit_normal", "mean": number, "std": rng.random()}},
        ):
            assert parse_solver(format_solver(fields)) == fields


def test_a_field_beside_the_text_must_agree() -> None:
    assert expand_solver({"solver": "RK4-20", "steps": 20}) == {"solver": "rk4", "steps": 20}
    with pytest.raises(InvalidValue, match=r"solver='rk4-20' says steps=20, but steps=10 was given too") as caught:
        expand_solver({"solver": "rk4-20", "steps": 10})
    assert caught.value.field == "steps"
    assert expand_solver({"solver": None, "steps": 3}) == {"solver": None, "steps": 3}
