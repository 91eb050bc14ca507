"""Tableaus as data: the checks when one is created, and the properties derived from its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from solvers import integrate
from solvers.tableaus import TABLEAUS, Tableau, order_of

HEUN_EULER = {"a": ((), (1.0,)), "b": (0.5, 0.5), "order": 2, "reference": "Hairer I, II.4"}


@pytest.mark.parametrize("tableau", TABLEAUS, ids=lambda tableau: tableau.name)
def test_published_tableaus_are_consistent(tableau: Tableau) -> None:
    assert np.allclose(tableau.matrix.sum(axis=1), tableau.c, atol=1e-14)
    assert sum(tableau.b) == pytest.approx(1, abs=1e-14)
    assert tableau.error.sum() == pytest.approx(0, abs=1e-14)
    assert tableau.c[0] == 0
    assert ((tableau.c >= 0) & (tableau.c <= 1)).all()
    assert tableau.reference


@pytest.mark.parametrize(
    ("name", "stages", "used", "fsal"),
    [
        ("euler", 1, 1, False),
        ("heun2", 2, 2, False),
        ("bosh3", 4, 3, True),
        ("rk4", 4, 4, False),
        ("dopri5", 7, 6, True),
    ],
)
def test_stages_and_fsal_follow_from_the_numbers(name: str, stages: int, used: int, fsal: bool) -> None:
    tableau = {tableau.name: tableau for tableau in TABLEAUS}[name]
    assert (tableau.stages, tableau.used_stages, tableau.fsal) == (stages, used, fsal)


@pytest.mark.parametrize("name", [tableau.name for tableau in TABLEAUS if tableau.interpolant is not None])
def test_dense_output_meets_both_ends_with_the_right_slopes(name: str) -> None:
    tableau = {tableau.name: tableau for tableau in TABLEAUS}[name]
    dense = tableau.interpolant
    assert dense is not None
    powers = np.arange(1, dense.shape[1] + 1)
    last = np.eye(tableau.stages)[-1]
    assert np.allclose(dense.sum(axis=1), tableau.b, atol=1e-13)
    assert np.allclose(dense[:, 0], np.eye(tableau.stages)[0], atol=1e-13)  # slope k_1 at theta = 0
    assert np.allclose(dense @ powers, last, atol=1e-12)  # slope k_s at theta = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": ((), (1.0, 0.0))}, "strictly lower triangle"),
        ({"b": (0.5, 0.6)}, "stated to be of order 2 but has order 0"),
        ({"order": 3}, "stated to be of order 3 but has order 2"),
        ({"b_hat": (1.0, 0.0)}, "go together"),
        ({"embedded_order": 1}, "go together"),
        ({"b_hat": (1.0,), "embedded_order": 1}, "1 numbers for 2 stages"),
        ({"b_hat": (0.9, 0.0), "embedded_order": 1}, "b_hat is stated to be of order 1 but has order 0"),
        ({"dense": ((1.0,), (0.0,))}, "does not end at b"),
    ],
)
def test_wrong_numbers_are_refused(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Tableau("wrong", **(HEUN_EULER | change))


def test_an_unused_stage_before_a_used_one_is_refused() -> None:
    tableau = Tableau("gap", a=((), (1.0,), (0.5, 0.0)), b=(0.0, 0.0, 1.0), order=2, reference="none")
    with pytest.raises(ValueError, match="unused stage"):
        _ = tableau.used_stages


A_TO_C = {"euler": [0], "midpoint": [0, 1 / 2], "heun2": [0, 1], "ralston2": [0, 2 / 3], "bosh3": [0, 1 / 2, 3 / 4]}
A_TO_C |= {"rk4": [0, 1 / 2, 1 / 2, 1], "rk4_38": [0, 1 / 3, 2 / 3, 1], "dopri5": [0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1]}
A_TO_C |= {"tsit5": [0, 0.161, 0.327, 0.9, 0.9800255409045097, 1]}


@pytest.mark.parametrize("tableau", TABLEAUS, ids=lambda tableau: tableau.name)
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.25, 0.5), (1.0, 0.0)])
def test_one_step_asks_exactly_where_the_tableau_says(tableau: Tableau, start: float, end: float) -> None:
    """A scripted velocity returns 1, 10, 100, ... and checks each (x, t) against the textbook."""
    script = [10.0**k for k in range(tableau.used_stages)]
    h, times = end - start, []

    def scripted(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        times.append((x.item(), t.item()))
        return torch.full_like(x, script[len(times) - 1])

    found = integrate(
        scripted, torch.tensor([[3.0]]).double(), solver=tableau.name, steps=1, t_span=(start, end)
    ).x.item()
    assert len(times) == len(script)
    for stage, (x, t) in enumerate(times):
        assert t == pytest.approx(start + A_TO_C.get(tableau.name, tableau.c)[stage] * h, abs=1e-15)
        assert x == pytest.approx(3 + h * sum(a * k for a, k in zip(tableau.a[stage], script, strict=False)), rel=1e-14)
    assert found == pytest.approx(3 + h * sum(b * k for b, k in zip(tableau.b, script, strict=False)), rel=1e-14)


@pytest.mark.parametrize("tableau", TABLEAUS, ids=lambda tableau: tableau.name)
def test_the_published_orders_are_exact(tableau: Tableau) -> None:
    assert order_of(tableau.matrix, np.array(tableau.b)) == tableau.order
    if tableau.b_hat is not None:
        assert order_of(tableau.matrix, np.array(tableau.b_hat)) == tableau.embedded_order


def test_a_changed_coefficient_loses_the_order() -> None:
    rk4 = next(tableau for tableau in TABLEAUS if tableau.name == "rk4")
    a = rk4.matrix.copy()
    a[3, 2], a[3, 1] = 0.9, 0.1
    assert order_of(a, np.array(rk4.b)) == 3
    assert order_of(rk4.matrix, np.array([0.2, 0.3, 0.3, 0.3])) == 0
