"""What the host keeps for each lane: one row of `f` (float64) or `i` (int64) a quantity, one column a lane.

The names are plain integers, as they index arrays several times in each tick.
"""

from __future__ import annotations


class F:
    """Rows of the float64 array."""

    T = 0  # where the lane stands
    H = 1  # the step, signed; 0 until the automatic first step is chosen
    T_NEXT = 2  # where the step ends, exactly
    T_END = 3
    SPAN = 4  # length of the whole integration
    RTOL = 5
    ATOL = 6
    Q = 7  # order of the error estimate
    ALPHA = 8  # controller
    BETA = 9
    BEFORE = 10  # error of the last accepted step
    D1 = 11  # norm of the first velocity, between the two calls of the automatic first step
    ROWS = 12


class I:  # noqa: E742  (the pair F, I reads as float and integer)
    """Rows of the int64 array."""

    ROW = 0  # next row, absolute in the bank
    NFE = 1
    MAX_NFE = 2
    ATTEMPT = 3  # calls that an attempt takes
    FIRST = 4  # first time of the grid, absolute in the bank
    STEP = 5  # time at which the running step ends
    LAST = 6  # last time of the grid
    TICKET = 7
    OWNER = 8
    INDEX = 9
    STATUS = 10
    REJECTED = 11  # 1 right after a rejection
    BAD = 12  # non-finite attempts in a row
    CUT = 13  # 1 if the step ends the span
    GROUP = 14  # lanes under one error norm, -1 for a lane on its own
    LOG = 15  # place in the step log, -1 for plans
    SAVE = 16  # next time to save at, absolute in the bank
    SAVE_FIRST = 17
    SAVE_END = 18
    ROWS = 19
