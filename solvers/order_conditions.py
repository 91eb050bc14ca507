"""Rooted trees and the order conditions of Runge-Kutta methods (Hairer I, II.2, theorem 2.13)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHECKED_ORDER = 5
"""Orders are checked up to this one (17 trees)."""

Tree = tuple[Any, ...]  # a tree is the sorted tuple of its subtrees; () is the single node


def _size(tree: Tree) -> int:
    return 1 + sum(_size(branch) for branch in tree)


@cache
def trees(size: int) -> tuple[Tree, ...]:
    """All rooted trees with `size` nodes (1, 1, 2, 4, 9 of them for sizes 1 to 5)."""

    def forests(nodes: int, largest: int) -> Iterator[Tree]:
        if nodes == 0:
            yield ()
        for part in range(min(nodes, largest), 0, -1):
            for count in range(1, nodes // part + 1):
                for smaller in forests(nodes - part * count, part - 1):
                    for group in combinations_with_replacement(trees(part), count):
                        yield group + smaller

    return tuple(forests(size - 1, size - 1))


def _density(tree: Tree) -> int:
    product = _size(tree)
    for branch in tree:
        product *= _density(branch)
    return product


def _stage_weights(tree: Tree, a: NDArray[np.float64]) -> NDArray[np.float64]:
    product = np.ones(len(a))
    for branch in tree:
        product = product * (a @ _stage_weights(branch, a))
    return product


def order_of(a: NDArray[np.float64], b: NDArray[np.float64], tolerance: float = 1e-12) -> int:
    """Return the order of the method (a, b), found from the conditions b . Phi(tree) = 1 / density(tree).

    Args:
        a: stages x stages.
        b: stages.
        tolerance: the deviation from a condition that rounding of the published numbers may cause.

    Returns:
        The order, at most `CHECKED_ORDER`; 0 when the weights do not even sum to 1.
    """
    for order in range(1, CHECKED_ORDER + 1):
        for tree in trees(order):
            if abs(b @ _stage_weights(tree, a) - 1 / _density(tree)) > tolerance:
                return order - 1
    return CHECKED_ORDER
