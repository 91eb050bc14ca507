"""Adams-Bashforth methods on any grid, compiled to rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.errors import SolverError
from solvers.plan import END_FIXED, MID, Rows
from solvers.tableaus import Tableau

STARTS = ("ramp", "rk")


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


def adams_bashforth(times: NDArray[np.float64], order: int, starter: Tableau | None) -> Rows:
    """Rows of an Adams-Bashforth method over a whole grid.

    Velocities at grid points go round the first `order` slots of K; the inner stages of a starting step use the
    slots after them.

    Args:
        times: (N + 1,) the grid.
        order: 2, 3 or 4.
        starter: the Runge-Kutta method of the first order - 1 steps; None ramps the order up 1, 2, ... instead.
    """
    steps = len(times) - 1
    stages = starter.used_stages if starter else 1
    started = min(order - 1, steps) if starter else 0
    count, width = steps + started * (stages - 1), order + stages - 1
    a, b = np.zeros((count, width)), np.zeros((count, width))
    c, slot = np.zeros(count), np.zeros(count, dtype=np.int64)
    kind = np.full(count, END_FIXED)
    for step in range(started):
        assert starter is not None  # noqa: S101  (started is 0 without one)
        first = step * stages
        places = np.array([step, *range(order, width)])
        rows = np.arange(first, first + stages)
        a[np.ix_(rows, places)] = starter.matrix[:stages, :stages]
        b[rows[-1], places] = starter.b[:stages]
        c[rows], slot[rows], kind[rows[:-1]] = starter.c[:stages], places, MID
    offset = started * (stages - 1)
    for depth in range(1, order + 1):
        # A ramp takes each lower order for one step; full order takes all the steps that are left.
        ramp = depth < order
        if depth > steps or (ramp and starter):
            continue
        table = weights(times, depth)[: 1 if ramp else None]
        step = np.arange(depth - 1, depth - 1 + len(table))
        b[(step + offset)[:, None], (step[:, None] - np.arange(depth)) % order] = table
    multistep = np.arange(started, steps)
    slot[multistep + offset] = multistep % order
    return Rows(
        a=a,
        b=b,
        e=np.zeros_like(a),
        stiff=np.zeros_like(a),
        bend=np.zeros_like(a),
        c=c,
        slot=slot,
        kind=kind,
        next=np.minimum(np.arange(count) + 1, count - 1),
        restart=0,
        fsal=False,
        dense=None,
    )


def check_start(name: str, start: str | None) -> str:
    """The start-up of a multistep method, `ramp` where left out.

    Raises:
        SolverError: for anything but `ramp` and `rk`.
    """
    chosen = "ramp" if start is None else start
    if chosen not in STARTS:
        raise SolverError("start", f"unknown start {start!r} for {name}; use one of {', '.join(STARTS)}")
    return chosen
