"""The records that compiled loops read: one for each lane, one for each row of the bank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANE = np.dtype(
    [
        # The first eight are what every call touches: one line of the cache, which the network's call has emptied.
        ("t", np.float64),  # where the lane stands
        ("h", np.float64),  # the step, signed; 0 until the automatic first step is chosen
        ("t_next", np.float64),  # where the step ends, exactly
        ("row", np.int64),  # next row, absolute in the bank
        ("done", np.int64),  # the row of the last call
        ("nfe", np.int64),
        ("step", np.int64),  # time of the grid at which the running step ends, absolute in the bank
        ("last", np.int64),  # last time of the grid
        ("status", np.int64),
        ("t_end", np.float64),
        ("span", np.float64),  # length of the whole integration
        ("rtol", np.float64),
        ("atol", np.float64),
        ("q", np.float64),  # order of the error estimate
        ("alpha", np.float64),  # controller
        ("beta", np.float64),
        ("before", np.float64),  # error of the last accepted step
        ("d1", np.float64),  # norm of the first velocity, between the two calls of the automatic first step
        ("max_step", np.float64),  # the longest step, infinite for no bound
        ("wary", np.float64),  # the longest step before t = mark, infinite where none was rejected on the way there
        ("mark", np.float64),  # where the furthest rejected attempt ended
        ("max_nfe", np.int64),
        ("attempt", np.int32),  # calls that an attempt takes
        ("rejected", np.int16),  # 1 right after a rejection
        ("bad", np.int16),  # non-finite attempts in a row
        ("group", np.int64),  # lanes under one error norm, -1 for a lane on its own
        ("log", np.int64),  # place in the step log, -1 for plans
        ("first", np.int64),  # first time of the grid
        ("ticket", np.int64),
        ("owner", np.int64),
        ("index", np.int64),
        ("save", np.int64),  # next time to save at, absolute in the bank
        ("save_first", np.int64),
        ("save_end", np.int64),
    ]
)
"""One lane: its clock, its tolerances and whose it is."""

ROW = np.dtype(
    [
        ("c", np.float64),  # node
        ("used", np.int64),  # how many leading slots have weights in the query
        ("advance_used", np.int64),  # and in the advance
        ("slot", np.int64),  # where the velocity goes
        ("kind", np.int64),  # what follows
        ("next", np.int64),  # the row after this one
        ("restart", np.int64),  # the row after an accepted step under error control
        ("fsal", np.int64),  # 1 if the last velocity of such a step is the first of the next
        ("dense", np.int64),  # index of the dense output, or -1
    ]
)
"""One row of the bank, see `rows.Rows`; `next` and `restart` are absolute here."""


def plain(records: NDArray[Any]) -> NDArray[np.int64]:
    """Records (n,) of `LANE` as the words (n, 32) they consist of: NumPy copies records field by field otherwise."""
    return records.view(np.int64).reshape(len(records), LANE.itemsize // 8)
