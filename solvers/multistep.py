"""Multistep methods: Adams-Bashforth on any grid, and DPM-Solver++ and UniPC for the path x_t = (1 - t) x0 + t x1.

The latter two are exponential integrators of diffusion models in flow form. With alpha = t and sigma = 1 - t, a
velocity gives the data prediction D = x + sigma v, and with lambda = log(alpha / sigma) the path obeys

    x(t') = (sigma' / sigma) x + sigma' integral_lambda^lambda' e^l D(l) dl,

in which these methods replace D by a polynomial in lambda through the last predictions. With phi = (t' - t) / sigma the
terms of order 1 are x + (t' - t) v, Euler's step. Higher orders add only differences of predictions, so the weight of x
is always 1: a step is a weighted sum of the last velocities and the last steps, which a plan's rows can express.

lambda is infinite at both ends, where the methods take their limits. A prediction at t = 0 is infinitely far back in
lambda and enters no polynomial, so the first two steps are of order 1. A step that ends at t = 1 is of order 1 too
(x + sigma v, the data prediction itself), as in every published implementation that ends at sigma = 0.

References:
    Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, III.1 and III.5. Lu et al. 2022, DPM-Solver++,
    arXiv:2211.01095, algorithm 2. Zhao et al. 2023, UniPC, arXiv:2302.04867, algorithms 1 to 3 and 5 (data prediction),
    with B(h) = e^h - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Steps = NDArray[np.int64]

STARTS = ("ramp", "rk")
"""How a method begins, the default first: with orders 1, 2, ... or with steps of its starter."""

STARTERS = {2: "heun2", 3: "heun2", 4: "bosh3"}
"""The Runge-Kutta method that starts the Adams-Bashforth method of each order without lowering it."""

_SERIES_BELOW = 4.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def adams_bashforth_weights(times: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return Adams-Bashforth weights for all steps of a non-uniform grid with at least `order - 1` steps before them.

    They give the integral over a step of the polynomial through the last `order` velocities, divided by the step: they
    solve sum_j beta_j s_j^m = 1 / (m + 1) at the nodes s_j = (t_(n-j) - t_n) / h.

    Args:
        times: (N + 1,) the grid.
        order: the number of velocities used.

    Returns:
        (N - order + 1, order): row i is for the step from times[i + order - 1]; newest velocity first.

    References:
        Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, III.1 and III.5.
    """
    steps = np.arange(order - 1, len(times) - 1)
    now, h = times[steps], times[steps + 1] - times[steps]
    powers = np.arange(order)
    nodes = (times[steps[:, None] - powers] - now[:, None]) / h[:, None]
    systems = nodes[:, None, :] ** powers[:, None]
    moments = np.broadcast_to(1.0 / (powers + 1), nodes.shape)
    return np.linalg.solve(systems, moments[..., None])[..., 0].astype(np.float64, copy=False)


@dataclass(frozen=True)
class Exponential:
    """DPM-Solver++, or UniPC.

    Attributes:
        order: how many predictions its predictor uses.
        corrects: whether each new velocity first corrects the step that led to it (UniC), without another call.
    """

    order: int
    corrects: bool

    @property
    def velocities(self) -> int:
        """Number of velocities used in a step."""
        return self.order + self.corrects

    @property
    def steps(self) -> int:
        """Number of earlier steps used in a step."""
        return self.velocities - 1


def exponential_weights(times: Numbers, method: Exponential) -> tuple[Numbers, Numbers]:
    """Return the weights of DPM-Solver++ or UniPC for all steps of a grid.

    Args:
        times: (N + 1,) the grid, within [0, 1], in either direction.
        method: the method.

    Returns:
        (N, V) weights of the velocities and (N, V - 1) of the earlier steps, both newest first: step n is
        sum_j a[n, j] v[n - j] + sum_j b[n, j] (x[n - j] - x[n - j - 1]).
    """
    sigma, h = 1 - times, np.diff(times)
    with np.errstate(divide="ignore"):
        lam, phi = np.log(times) - np.log1p(-times), h / sigma[:-1]
    # The order of each step: the number of predictions at finite lambda so far; 1 for a step to infinite lambda.
    depth = np.clip(np.cumsum(np.isfinite(lam[:-1])), 1, method.order)
    depth[~np.isfinite(lam[1:])] = 1
    of_velocities, of_steps = np.zeros((len(h), method.velocities)), np.zeros((len(h), method.steps))

    def add_difference(n: Steps, age: int, base: int, weight: Numbers) -> None:
        """Add weight (D[n - age] - D[n - base]) to steps n (m,)."""
        of_velocities[n, age] += weight * sigma[n - age]
        of_velocities[n, base] -= weight * sigma[n - base]
        sign = 1 if age < base else -1
        for between in range(min(age, base), max(age, base)):
            of_steps[n, between] += sign * weight

    for order in range(2, method.order + 1):
        n = np.flatnonzero(depth == order)
        for age, weight in enumerate(_predictor(lam, n, order).T, start=1):
            add_difference(n, age, 0, phi[n] * weight)
    if method.corrects:
        for order in range(1, method.order + 1):
            # The correction of the previous step, from predictions that are one step older.
            n = np.flatnonzero(depth[:-1] == order) + 1
            n = n[np.isfinite(phi[n - 1])]
            before = _corrector(lam, n - 1, order)
            before[:, :-1] -= _predictor(lam, n - 1, order)
            share = (1 - phi[n]) * phi[n - 1]
            for age, weight in enumerate(before[:, :-1].T, start=2):
                add_difference(n, age, 1, share * weight)
            add_difference(n, 0, 1, share * before[:, -1])
    of_velocities[:, 0] += h
    return of_velocities, of_steps


def _predictor(lam: Numbers, n: Steps, order: int) -> Numbers:
    """Return weights (m, order - 1) of (D[n - i] - D[n]), i = 1, ..., in units of phi: UniP (order 2: DPM-Solver++)."""
    if order == 1:
        return np.zeros((len(n), 0))
    ages = np.arange(1, order)
    h = lam[n + 1] - lam[n]
    nodes = (lam[n[:, None] - ages] - lam[n, None]) / h[:, None]
    if order == 2:  # the choice of both papers, instead of the exact moment
        return 0.5 / nodes
    return _solved(nodes, h) / nodes


def _corrector(lam: Numbers, n: Steps, order: int) -> Numbers:
    """Return UniC's weights (m, order) of (D[n - i] - D[n]), i = 1, ..., last of (D[n + 1] - D[n]), in units of phi."""
    if order == 1:  # the paper's choice
        return np.full((len(n), 1), 0.5)
    ages = np.arange(1, order)
    h = lam[n + 1] - lam[n]
    nodes = np.concatenate([(lam[n[:, None] - ages] - lam[n, None]) / h[:, None], np.ones((len(n), 1))], axis=1)
    return _solved(nodes, h) / nodes


def _solved(nodes: Numbers, h: Numbers) -> Numbers:
    """Return rho (m, k) with sum_i rho_i r_i^(j-1) = the j-th moment, j = 1..k, for nodes r (m, k): UniPC eq. (9)."""
    powers = np.arange(nodes.shape[1])
    return np.linalg.solve(nodes[:, None, :] ** powers[:, None], _moments(h, len(powers))[..., None])[..., 0]


def _moments(h: Numbers, count: int) -> Numbers:
    """Return the moments (m, count) of s^j, j = 1, 2, ..., under the weight e^(h s) on [0, 1], normalised."""
    s = (_NODES + 1) / 2
    dense = np.exp(np.clip(h, -_SERIES_BELOW, _SERIES_BELOW)[:, None] * (s - 1)) * _WEIGHTS
    moments = np.stack([(dense * s**j).sum(axis=1) / dense.sum(axis=1) for j in range(1, count + 1)], axis=1)
    far = np.abs(h) >= _SERIES_BELOW
    if far.any():  # there the recurrence loses no digits
        before = -np.expm1(-h[far])
        whole = before
        for j in range(1, count + 1):
            before = 1 - j / h[far] * before
            moments[far, j - 1] = before / whole
    return moments
