"""Tableaus compiled to rows: the order of evaluations, and what each row does."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.plan import (
    ADAPTIVE_START,
    END_ADAPTIVE,
    END_FIXED,
    FIRST_SLOPE,
    FIRST_STEP,
    MID,
    A,
    B,
    E,
    adaptive_rows,
    fixed_rows,
)
from solvers.tableaus import TABLEAUS, Tableau
from tests.solvers.support import ADAPTIVE

BY_NAME = {tableau.name: tableau for tableau in TABLEAUS}


@pytest.mark.parametrize("tableau", TABLEAUS, ids=lambda tableau: tableau.name)
def test_fixed_rows_go_round_the_stages_that_count(tableau: Tableau) -> None:
    rows = fixed_rows(tableau)
    s = tableau.used_stages
    assert rows.records["kind"].tolist() == [MID] * (s - 1) + [END_FIXED]
    assert rows.records["next"].tolist() == [*range(1, s), 0]
    assert rows.slots == s
    assert np.array_equal(rows.weights[:, A], np.tril(rows.weights[:, A], -1))
    assert rows.weights[:, B][-1].tolist() == list(tableau.b[:s])
    assert not rows.weights[:, B][:-1].any()
    assert not rows.weights[:, E].any()


@pytest.mark.parametrize("name", [name for name in ADAPTIVE if BY_NAME[name].fsal])
def test_adaptive_rows_of_an_fsal_pair(name: str) -> None:
    tableau, rows = BY_NAME[name], adaptive_rows(BY_NAME[name])
    s = tableau.stages
    assert rows.records["kind"].tolist() == [FIRST_SLOPE, FIRST_STEP] + [MID] * (s - 2) + [END_ADAPTIVE]
    assert rows.records["slot"].tolist() == [0, 1, *range(1, s)]
    assert rows.records["restart"][-1] == rows.records["next"][-1] == ADAPTIVE_START
    assert np.allclose(rows.weights[-1, E], tableau.error)
    assert rows.records["fsal"].all()


def test_a_pair_without_fsal_asks_once_more_after_a_step() -> None:
    pair = Tableau("pair", ((), (1.0,)), (0.5, 0.5), 2, "none", b_hat=(1.0, 0.0), embedded_order=1)
    rows = adaptive_rows(pair)
    assert rows.records["kind"].tolist() == [FIRST_SLOPE, FIRST_STEP, END_ADAPTIVE, MID]
    assert set(rows.records["restart"]) == {3}
    assert rows.records["next"].tolist() == [1, 2, 2, 2]
    assert rows.dense is None


def test_equal_tableaus_share_their_rows() -> None:
    assert fixed_rows(BY_NAME["rk4"]) is fixed_rows(BY_NAME["rk4"])
    assert adaptive_rows(BY_NAME["dopri5"]) is adaptive_rows(BY_NAME["dopri5"])
