"""DPM-Solver++, UniPC and plans as formulas: one trajectory, plain loops; the tests hold lanes to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from solvers.reference import Field, Vector, _step


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
