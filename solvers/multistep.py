"""Adams-Bashforth methods: orders, starters, and weights on any grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STARTS = ("ramp", "rk")
"""How a method begins, the default first: with orders 1, 2, ... or with steps of its starter."""

STARTERS = {2: "heun2", 3: "heun2", 4: "bosh3"}
"""The Runge-Kutta method that starts the Adams-Bashforth method of each order, and keeps its order."""


def weights(times: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Adams-Bashforth weights for every step of a non-uniform grid that has enough steps behind it.

    The integral over a step of the polynomial through the last `order` velocities, divided by the step: the weights
    solve sum_j beta_j s_j^m = 1 / (m + 1) at the nodes s_j = (t_(n-j) - t_n) / h.

    Args:
        times: (N + 1,) the grid.
        order: how many velocities enter.

    Returns:
        (N - order + 1, order): row i is for the step from times[i + order - 1]; newest velocity first.

    References:
        Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, III.1 and III.5.
    """
    steps = np.arange(order - 1, len(times) - 1)
    here, h = times[steps], times[steps + 1] - times[steps]
    powers = np.arange(order)
    nodes = (times[steps[:, None] - powers] - here[:, None]) / h[:, None]
    systems = nodes[:, None, :] ** powers[:, None]
    moments = np.broadcast_to(1.0 / (powers + 1), nodes.shape)
    return np.linalg.solve(systems, moments[..., None])[..., 0].astype(np.float64, copy=False)
