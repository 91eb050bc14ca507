"""What the host keeps for each lane, one record a lane: its clock, its tolerances and whose it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANE = np.dtype(
    [
        ("t", np.float64),  # where the lane stands
        ("h", np.float64),  # the step, signed; 0 until the automatic first step is chosen
        ("t_next", np.float64),  # where the step ends, exactly
        ("t_end", np.float64),
        ("span", np.float64),  # length of the whole integration
        ("rtol", np.float64),
        ("atol", np.float64),
        ("q", np.float64),  # order of the error estimate
        ("alpha", np.float64),  # controller
        ("beta", np.float64),
        ("before", np.float64),  # error of the last accepted step
        ("d1", np.float64),  # norm of the first velocity, between the two calls of the automatic first step
        ("row", np.int64),  # next row, absolute in the bank
        ("done", np.int64),  # the row of the last call
        ("nfe", np.int64),
        ("max_nfe", np.int64),
        ("attempt", np.int64),  # calls that an attempt takes
        ("first", np.int64),  # first time of the grid, absolute in the bank
        ("step", np.int64),  # time at which the running step ends
        ("last", np.int64),  # last time of the grid
        ("ticket", np.int64),
        ("owner", np.int64),
        ("index", np.int64),
        ("status", np.int64),
        ("rejected", np.int64),  # 1 right after a rejection
        ("bad", np.int64),  # non-finite attempts in a row
        ("cut", np.int64),  # 1 if the step ends the span
        ("group", np.int64),  # lanes under one error norm, -1 for a lane on its own
        ("log", np.int64),  # place in the step log, -1 for plans
        ("save", np.int64),  # next time to save at, absolute in the bank
        ("save_first", np.int64),
        ("save_end", np.int64),
    ]
)
"""One lane."""


def plain(records: NDArray[Any]) -> NDArray[np.int64]:
    """Records (n,) as the words (n, 32) they consist of: NumPy copies those at once, but records field by field."""
    return records.view(np.int64).reshape(len(records), LANE.itemsize // 8)
