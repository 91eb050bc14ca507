"""Reference solvers, as the papers write them: one trajectory, plain loops, the papers' symbols.

They are for reading and for tests. `lanes` computes the same for thousands of trajectories at once, and the tests hold
it to these: bit for bit on a grid, where sums run over the stages in their order with weights (b_i h), and to rounding
under error control.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.control import CONTROLLERS
from solvers.multistep import adams_bashforth_weights
from solvers.tableaus import Tableau

Vector = NDArray[np.floating]
Field = Callable[[Vector, float], Vector]


def runge_kutta(v: Field, x: Vector, t: Sequence[float], tableau: Tableau) -> Vector:
    """Explicit Runge-Kutta on the grid t_0 < ... < t_N: k_i = v(x + h sum_j a_ij k_j, t + c_i h), x + h sum_i b_i k_i.

    Hairer I, II.1, definition 1.1. Euler, midpoint, Heun and RK4 differ in a, b and c only.
    """
    a, b, c, s = tableau.a, tableau.b, tableau.c, tableau.used_stages
    for t_n, t_next in pairwise(t):
        h = t_next - t_n
        k: list[Vector] = []
        for i in range(s):
            k.append(v(_step(x, h, a[i], k), t_next if c[i] == 1 else t_n + c[i] * h))
        x = _step(x, h, b[:s], k)
    return x


def adams_bashforth(v: Field, x: Vector, t: Sequence[float], order: int, starter: Tableau | None = None) -> Vector:
    """Adams-Bashforth on any grid: x_(n+1) = x_n + h_n sum_j beta_j v_(n-j), beta from the interpolating polynomial.

    Hairer I, III.1 eq. (1.5') and III.5. The first order - 1 steps use the starter, or orders 1, 2, ... (ramp).
    """
    past: list[Vector] = []
    for n in range(len(t) - 1):
        if starter is not None and n < order - 1:
            past.insert(0, v(x, t[n]))
            x = runge_kutta(v, x, t[n : n + 2], starter)
            continue
        past = [v(x, t[n]), *past][:order]
        beta = adams_bashforth_weights(np.array(t), len(past))[n + 1 - len(past)]
        # In the order of the ring of slots, where velocity m is in slot m mod order.
        ring = sorted(range(len(past)), key=lambda j: (n - j) % order)
        x = _step(x, t[n + 1] - t[n], [float(beta[j]) for j in ring], [past[j] for j in ring])
    return x


def embedded(
    v: Field,
    x: Vector,
    t_span: tuple[float, float],
    tableau: Tableau,
    rtol: float,
    atol: float,
    controller: str,
    h: float,
) -> tuple[Vector, list[tuple[float, float, float]]]:
    """Embedded pair under error control from a given first step h > 0; returns x(t_1) and each attempt's (t, h, err).

    err = || (x_hat - x) / (atol + rtol max(|x_n|, |x_(n+1)|)) ||_rms; accepted at err <= 1; then h times
    0.9 err^-alpha err_before^beta in [0.2, 10], at most 1 after a rejection (Hairer I, II.4; Hairer & Wanner II, IV.2).
    After a rejection, no step up to the end of the rejected attempt is longer than its error allowed.
    """
    assert tableau.embedded_order is not None  # noqa: S101
    control = CONTROLLERS[controller](tableau.embedded_order)
    (t, t_1), before, rejected = t_span, 1.0, False
    wary, mark = math.inf, t
    attempts: list[tuple[float, float, float]] = []
    while t < t_1:
        h = min(h, wary)
        h, t_next = (t_1 - t, t_1) if 1.01 * h >= t_1 - t else (h, t + h)  # no sliver is left over
        k: list[Vector] = []
        for a_i, c_i in zip(tableau.a, tableau.c, strict=True):
            k.append(v(_step(x, h, a_i, k), t_next if c_i == 1 else t + c_i * h))
        x_next = _step(x, h, tableau.b, k)
        scale = atol + rtol * np.maximum(abs(x), abs(x_next))
        err = math.sqrt(np.mean((_step(0 * x, h, tableau.error.tolist(), k) / scale) ** 2))
        attempts.append((t, h, err))
        factor = 0.9 * err**-control.alpha * (max(before, 1e-4) ** control.beta if err <= 1 else 1)
        h *= min(max(factor, 0.2), 1 if rejected or err > 1 else 10)
        if err <= 1:
            x, t, before = x_next, t_next, err
            wary = math.inf if t >= mark else wary
        elif math.isinf(wary) or t_next > mark:
            wary, mark = h, t_next
        rejected = err > 1
    return x, attempts


def first_step(v: Field, x: Vector, t_span: tuple[float, float], rtol: float, atol: float, q: int) -> float:
    """The automatic first step from the sizes of x, v and the change of v (Hairer I, II.4, algorithm of p. 169)."""
    t, t_1 = t_span
    scale = atol + rtol * abs(x)
    d0, d1 = _rms(x / scale), _rms(v(x, t) / scale)
    h0 = min(1e-6 if min(d0, d1) < 1e-5 else 0.01 * d0 / d1, t_1 - t)
    d2 = _rms((v(x + h0 * v(x, t), t + h0) - v(x, t)) / scale) / h0
    h1 = max(1e-6, h0 * 1e-3) if max(d1, d2) <= 1e-15 else (0.01 / max(d1, d2)) ** (1 / (q + 1))
    return min(100 * h0, h1, t_1 - t)


def _step(x: Vector, h: float, weight: Sequence[float], k: Sequence[Vector]) -> Vector:
    """x + sum_i (weight_i h) k_i, summed in the order of i."""
    total = 0 * x
    for weight_i, k_i in zip(weight, k, strict=True):
        total = total + x.dtype.type(weight_i * h) * k_i
    return x + total


def _rms(values: Vector) -> float:
    return math.sqrt(np.mean(values**2))
