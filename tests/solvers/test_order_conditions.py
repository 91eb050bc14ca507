"""Rooted trees and order conditions."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.order_conditions import order_of, trees
from solvers.tableaus import TABLEAUS, Tableau


def test_there_are_1_1_2_4_9_trees() -> None:
    assert [len(trees(size)) for size in range(1, 6)] == [1, 1, 2, 4, 9]


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
