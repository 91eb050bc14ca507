"""Butcher tableaus as data.

A new Runge-Kutta method is one entry in `TABLEAUS` and nothing else: the number of stages used, whether the last one
can be reused (FSAL), the stability limit and the cost all follow from the numbers, and the stated order is checked
against the order conditions when the entry is created.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations_with_replacement, product

import numpy as np
from numpy.typing import NDArray

CHECKED_ORDER = 5
"""Orders are checked up to this one (17 rooted trees)."""

Coefficients = tuple[float, ...]


def order_of(a: NDArray[np.float64], b: NDArray[np.float64], tolerance: float = 1e-12) -> int:
    """Return the order of the method (a, b), found from the conditions b . Phi(tree) = 1 / density(tree).

    A rooted tree is a node with smaller trees as its branches. Its density is its number of nodes times the densities
    of the branches; Phi is the product of a Phi over the branches (Hairer I, II.2, theorem 2.13).

    Args:
        a: stages x stages.
        b: stages.
        tolerance: the deviation from a condition that rounding of the published numbers may cause.

    Returns:
        The order, at most `CHECKED_ORDER`; 0 when the weights do not even sum to 1.
    """
    trees: dict[int, list[tuple[int, NDArray[np.float64]]]] = {}  # density and Phi, by the number of nodes
    for order in range(1, CHECKED_ORDER + 1):
        trees[order] = []
        for sizes in _partitions(order - 1, order - 1):
            groups = (combinations_with_replacement(trees[size], sizes.count(size)) for size in sorted(set(sizes)))
            for branches in (sum(choice, ()) for choice in product(*groups)):
                phi = np.prod([np.ones(len(a)), *(a @ branch for _, branch in branches)], axis=0)
                trees[order].append((order * math.prod(density for density, _ in branches), phi))
        if any(abs(b @ phi - 1 / density) > tolerance for density, phi in trees[order]):
            return order - 1
    return CHECKED_ORDER


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of descending numbers."""
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for further in _partitions(total - first, first):
            yield (first, *further)


def _q(text: str) -> Coefficients:
    """Numbers from text such as `1/6 1/3 0.5`."""
    return tuple(float(Fraction(word)) for word in text.split())


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta method: x + h sum_i b_i k_i, with k_i = v(x + h sum_j a_ij k_j, t + c_i h).

    Attributes:
        name: the name in requests.
        a: the strictly lower triangle, row i with i entries (the first row is empty).
        b: the weights of the solution.
        order: the order of `b`; checked up to 5.
        reference: where the numbers are published.
        b_hat: the embedded weights, for methods with an error estimate.
        embedded_order: the order q of the embedded solution; the error estimate is O(h^(q+1)).
        dense: coefficients of the dense output, one row per stage: b_i(theta) = sum_j dense[i][j] theta^(j+1).
            By default an FSAL pair gets cubic Hermite interpolation, which needs no extra call.
        controller: the name of the controller (`control.CONTROLLERS`) that error control uses by default.

    Raises:
        ValueError: for shapes that do not fit, a stated order that the numbers do not have, or weights that do
            not sum to 1.

    References:
        Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I (2nd ed.), II.1 and II.2.
    """

    name: str
    a: tuple[Coefficients, ...]
    b: Coefficients
    order: int
    reference: str
    b_hat: Coefficients | None = None
    embedded_order: int | None = None
    dense: tuple[Coefficients, ...] | None = None
    controller: str = "i"

    def __post_init__(self) -> None:
        n = len(self.b)
        if [len(row) for row in self.a] != list(range(n)):
            raise ValueError(f"{self.name}: a must be a strictly lower triangle with rows of 0 to {n - 1} numbers")
        if self.c.min() < 0 or self.c.max() > 1:
            raise ValueError(
                f"{self.name}: nodes must lie in [0, 1], so that the field is evaluated within the step; got {self.c}"
            )
        self._check_order("b", self.b, self.order)
        if (self.b_hat is None) != (self.embedded_order is None):
            raise ValueError(f"{self.name}: b_hat and embedded_order go together")
        if self.b_hat is not None and self.embedded_order is not None:
            if len(self.b_hat) != n:
                raise ValueError(f"{self.name}: b_hat has {len(self.b_hat)} numbers for {n} stages")
            self._check_order("b_hat", self.b_hat, self.embedded_order)
        if self.dense is not None and not np.allclose(np.sum(self.dense, axis=1), self.b, atol=1e-12):
            raise ValueError(f"{self.name}: the dense output does not end at b for theta = 1")

    def _check_order(self, label: str, weights: Coefficients, stated: int) -> None:
        order = order_of(self.matrix, np.array(weights))
        if min(stated, CHECKED_ORDER) > order:
            raise ValueError(f"{self.name}: {label} is stated to be of order {stated} but has order {order}")

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The matrix a, stages x stages, zeros on and above the diagonal."""
        full = np.zeros((len(self.b), len(self.b)))
        for i, row in enumerate(self.a):
            full[i, :i] = row
        return full

    @cached_property
    def c(self) -> NDArray[np.float64]:
        """The nodes: row sums of a. Sums within rounding of 1 are set to 1, which is exactly the step's end."""
        sums = self.matrix.sum(axis=1)
        return np.where(np.abs(sums - 1) < 1e-14, 1.0, sums)

    @property
    def stages(self) -> int:
        """Number of all stages, including those for the error estimate."""
        return len(self.b)

    @cached_property
    def used_stages(self) -> int:
        """Number of stages that a step without error estimate needs: those with a path to b (bosh3: 3 of 4)."""
        needed = {i for i, weight in enumerate(self.b) if weight != 0}
        for i in reversed(range(self.stages)):
            if i in needed:
                needed |= {j for j, weight in enumerate(self.a[i]) if weight != 0}
        if needed != set(range(len(needed))):
            raise ValueError(f"{self.name}: an unused stage comes before a used one; leave it out")
        return len(needed)

    @property
    def fsal(self) -> bool:
        """First same as last: the last stage is evaluated where the next step begins."""
        return self.b[-1] == 0 and self.a[-1] == self.b[:-1]

    @property
    def adaptive(self) -> bool:
        """Whether there is an error estimate."""
        return self.b_hat is not None

    @cached_property
    def error(self) -> NDArray[np.float64]:
        """The weights of the error estimate, b - b_hat (zeros without one)."""
        return np.array(self.b) - np.array(self.b_hat) if self.b_hat else np.zeros(self.stages)

    @cached_property
    def interpolant(self) -> NDArray[np.float64] | None:
        """Dense output, stages x degree; None if the stages do not suffice for one."""
        if self.dense is not None:
            return np.array(self.dense)
        if not self.fsal:
            return None
        hermite = np.zeros((self.stages, 3))
        hermite[:, 1] += 3 * np.array(self.b)
        hermite[:, 2] -= 2 * np.array(self.b)
        hermite[0] += (1, -2, 1)
        hermite[-1] += (0, -1, 1)
        return hermite


def _dopri5_dense() -> tuple[Coefficients, ...]:
    """Shampine's fourth-order dense output in the form of Hairer's dopri5 code, as polynomials in theta."""
    b = np.array(_q("35/384 0 500/1113 125/192 -2187/6784 11/84 0"))
    d = np.array(
        _q(
            "-12715105075/11282082432 0 87487479700/32700410799 -10690763975/1880347072"
            " 701980252875/199316789632 -1453857185/822651844 69997945/29380423"
        )
    )
    first, last = np.eye(7)[0], np.eye(7)[6]
    p = np.zeros((7, 4))
    # y0 + theta (dy + (1 - theta)(k1 - dy + theta (2 dy - k1 - k7 + (1 - theta) d))), expanded.
    p[:, 0] = first
    p[:, 1] = -2 * first + 3 * b - last + d
    p[:, 2] = first - 2 * b + last - 2 * d
    p[:, 3] = d
    return tuple(tuple(float(v) for v in row) for row in p)


def _tsit5_dense() -> tuple[Coefficients, ...]:
    """Tsitouras' fourth-order interpolant; his factored polynomials are expanded here."""
    p = np.zeros((7, 4))
    p[0] = (
        -1.0530884977290216 * np.polymul((1, -1.3299890189751412), (1, -1.4364028541716351, 0.7139816917074209))[::-1]
    )
    quadratics = (
        (0.1017, (1, -2.1966568338249754, 1.2949852507374631)),
        (2.490627285651252793, (1, -2.38535645472061657, 1.57803468208092486)),
        (-16.54810288924490272, np.poly((1.21712927295533244, 0.61620406037800089))),
        (47.37952196281928122, np.poly((1.203071208372362603, 0.658047292653547382))),
        (-34.87065786149660974, np.poly((1.2, 2 / 3))),
        (2.5, np.poly((1.0, 0.6))),
    )
    for stage, (scale, quadratic) in enumerate(quadratics, start=1):
        p[stage, 1:] = scale * np.asarray(quadratic)[::-1]
    return tuple(tuple(float(v) for v in row) for row in p)


_TSIT5_B = _q("0.09646076681806523 0.01 0.4798896504144996 1.379008574103742 -3.290069515436081 2.324710524099774 0")
_TSIT5_ERROR = _q(
    "-0.00178001105222577714 -0.0008164344596567469 0.007880878010261995 -0.1447110071732629"
    " 0.5823571654525552 -0.45808210592918697 1/66"
)

TABLEAUS: tuple[Tableau, ...] = (
    Tableau("euler", a=((),), b=(1.0,), order=1, reference="Euler 1768; Hairer I, II.1 eq. (1.3)"),
    Tableau("midpoint", a=((), _q("1/2")), b=_q("0 1"), order=2, reference="Runge 1895; Hairer I, II.1 eq. (1.4)"),
    Tableau("heun2", a=((), _q("1")), b=_q("1/2 1/2"), order=2, reference="Heun 1900; Butcher 2016, sec. 232"),
    Tableau("ralston2", a=((), _q("2/3")), b=_q("1/4 3/4"), order=2, reference="Ralston 1962, Math. Comp. 16"),
    Tableau(
        "bosh3",
        a=((), _q("1/2"), _q("0 3/4"), _q("2/9 1/3 4/9")),
        b=_q("2/9 1/3 4/9 0"),
        order=3,
        b_hat=_q("7/24 1/4 1/3 1/8"),
        embedded_order=2,
        reference="Bogacki & Shampine 1989, Appl. Math. Lett. 2",
    ),
    Tableau(
        "rk4",
        a=((), _q("1/2"), _q("0 1/2"), _q("0 0 1")),
        b=_q("1/6 1/3 1/3 1/6"),
        order=4,
        reference="Kutta 1901; Hairer I, II.1 table 1.2",
    ),
    Tableau(
        "rk4_38",
        a=((), _q("1/3"), _q("-1/3 1"), _q("1 -1 1")),
        b=_q("1/8 3/8 3/8 1/8"),
        order=4,
        reference="Kutta 1901 (3/8 rule); Hairer I, II.1 table 1.2",
    ),
    Tableau(
        "dopri5",
        a=(
            (),
            _q("1/5"),
            _q("3/40 9/40"),
            _q("44/45 -56/15 32/9"),
            _q("19372/6561 -25360/2187 64448/6561 -212/729"),
            _q("9017/3168 -355/33 46732/5247 49/176 -5103/18656"),
            _q("35/384 0 500/1113 125/192 -2187/6784 11/84"),
        ),
        b=_q("35/384 0 500/1113 125/192 -2187/6784 11/84 0"),
        order=5,
        b_hat=_q("5179/57600 0 7571/16695 393/640 -92097/339200 187/2100 1/40"),
        embedded_order=4,
        dense=_dopri5_dense(),
        controller="paper",
        reference="Dormand & Prince 1980, J. Comp. Appl. Math. 6; Hairer I, II.5 table 5.2 and II.6",
    ),
    Tableau(
        "tsit5",
        a=(
            (),
            _q("0.161"),
            _q("-0.008480655492356989 0.335480655492357"),
            _q("2.8971530571054935 -6.359448489975075 4.3622954328695815"),
            _q("5.325864828439257 -11.748883564062828 7.4955393428898365 -0.09249506636175525"),
            _q("5.86145544294642 -12.92096931784711 8.159367898576159 -0.071584973281401 -0.028269050394068383"),
            _TSIT5_B[:-1],
        ),
        b=_TSIT5_B,
        order=5,
        b_hat=tuple(b - e for b, e in zip(_TSIT5_B, _TSIT5_ERROR, strict=True)),
        embedded_order=4,
        dense=_tsit5_dense(),
        reference="Tsitouras 2011, Comput. Math. Appl. 62, table 1",
    ),
)
