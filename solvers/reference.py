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


def dpm_solver_2m(v: Field, x: Vector, t: Sequence[float]) -> Vector:
    """DPM-Solver++(2M) in flow form (Lu et al. 2022, algorithm 2): alpha = t, sigma = 1 - t, D = x + sigma v.

    x_(n+1) = (sigma' / sigma) x_n + alpha' (1 - e^-h) D_bar, D_bar = (1 + 1 / (2 r)) D_n - 1 / (2 r) D_(n-1), where h
    is a step of lambda = log(alpha / sigma) and r = h_(n-1) / h_n; D_bar = D_n where lambda is infinite.
    """
    data: list[Vector] = []
    for n in range(len(t) - 1):
        s, s_next = 1 - t[n], 1 - t[n + 1]
        data.append(x + s * v(x, t[n]))
        h, before = _lambda(t[n + 1]) - _lambda(t[n]), _lambda(t[n]) - _lambda(t[max(n - 1, 0)])
        extrapolated = data[n]
        if n and math.isfinite(h) and math.isfinite(before):
            extrapolated = data[n] + h / (2 * before) * (data[n] - data[n - 1])
        x = s_next / s * x + (t[n + 1] - t[n] * s_next / s) * extrapolated  # alpha' (1 - e^-h) without lambda
    return x


def unipc(v: Field, x: Vector, t: Sequence[float], order: int) -> Vector:
    """UniPC in flow form (Zhao et al. 2023, algorithms 1 to 3 for the data prediction, B(h) = e^h - 1).

    The predictor UniP steps from the corrected state; the velocity at its end both corrects that step (UniC) and begins
    the next one. Predictions at infinite lambda are left out, and a step to infinite lambda is of order 1, the limit
    for sigma = 0.
    """
    data: list[Vector] = []
    lam = [_lambda(time) for time in t]
    base, nodes, slopes, ratio, phi, h = x, [], [], 1.0, 0.0, 0.0
    for n in range(len(t) - 1):
        data.append(x + (1 - t[n]) * v(x, t[n]))
        if n:  # correct: the nodes of the predictor, and the end of the step
            differences = [*slopes, data[n] - data[n - 1]]
            rho = [0.5] if not nodes else _unified([*nodes, 1.0], h)
            change = sum(weight * difference for weight, difference in zip(rho, differences, strict=True))
            x = ratio * base + phi * (data[n - 1] + change)
        h = lam[n + 1] - lam[n]
        last = range(n - 1, max(0, n - order + 1) - 1, -1)
        usable = [m for m in last if math.isfinite(lam[m]) and math.isfinite(lam[n + 1])]
        nodes = [(lam[m] - lam[n]) / h for m in usable]
        slopes = [(data[m] - data[n]) / r for m, r in zip(usable, nodes, strict=True)]
        rho = [0.5] if len(nodes) == 1 else _unified(nodes, h) if nodes else []
        ratio = (1 - t[n + 1]) / (1 - t[n])
        phi = t[n + 1] - t[n] * ratio
        base, change = x, sum((weight * slope for weight, slope in zip(rho, slopes, strict=True)), 0 * x)
        x = ratio * base + phi * (data[n] + change)
    return x


def _lambda(t: float) -> float:
    return -math.inf if t == 0 else math.inf if t == 1 else math.log(t / (1 - t))


def _unified(nodes: Sequence[float], h: float) -> list[float]:
    """Coefficients from UniPC eq. (9): sum_m a_m r_m^(k-1) = the k-th moment of the exponential weight."""
    moment, moments = 1.0, []
    for k in range(1, len(nodes) + 1):
        moment = 1 / -math.expm1(-h) - k / h * moment
        moments.append(moment)
    return np.linalg.solve(np.array([[r**k for r in nodes] for k in range(len(nodes))]), moments).tolist()


def plan(
    v: Field,
    x: Vector,
    t: Sequence[float],
    b: NDArray[np.float64],
    slot: Sequence[int],
    keep: Sequence[int],
    origin: int = -1,
) -> Vector:
    """A plan that ends a step with every row, row by row: K[slot_n] = v(x_n, t_n), x_(n+1) = x_n + sum_s (b_ns h) K_s.

    If keep_n is not -1, the sum also goes to K[keep_n], for later rows.
    """
    k: list[Vector] = [0 * x for _ in range(b.shape[1])]
    if origin >= 0:
        k[origin] = x
    for n in range(len(t) - 1):
        k[slot[n]] = v(x, t[n])
        used = int(np.flatnonzero(b[n]).max(initial=-1)) + 1
        h, weight = t[n + 1] - t[n], b[n, :used].tolist()
        advance = _step(0 * x, h, weight, k[:used])
        x = _step(x, h, weight, k[:used])
        if keep[n] >= 0:
            k[keep[n]] = advance
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
