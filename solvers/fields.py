"""What the host keeps for each lane: one row of `F` (float64) and of `I` (int64) a quantity, one column a lane."""

from __future__ import annotations

from enum import IntEnum, auto


class _Row(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class F(_Row):
    """Real quantities."""

    T = auto()  # where the lane stands
    H = auto()  # the step, signed; 0 until the automatic first step is chosen
    T_NEXT = auto()  # where the step ends, exactly
    T_END = auto()
    LOW = auto()  # the span, sorted
    HIGH = auto()
    RTOL = auto()
    ATOL = auto()
    Q = auto()  # order of the error estimate
    ALPHA = auto()  # controller
    BETA = auto()
    BEFORE = auto()  # error of the last accepted step
    D1 = auto()  # norm of the first velocity, between the two calls of the automatic first step


class I(_Row):  # noqa: E742  (the pair F, I reads as float and integer)
    """Whole quantities."""

    ROW = auto()  # next row, absolute in the bank
    NFE = auto()
    MAX_NFE = auto()
    ATTEMPT = auto()  # calls that an attempt takes
    FIRST = auto()  # first time of the grid, absolute in the bank
    STEP = auto()  # time at which the running step ends
    LAST = auto()  # last time of the grid
    TICKET = auto()
    OWNER = auto()
    INDEX = auto()
    STATUS = auto()
    REJECTED = auto()  # 1 right after a rejection
    BAD = auto()  # non-finite attempts in a row
    CUT = auto()  # 1 if the step ends the span
    GROUP = auto()  # lanes under one error norm, -1 for a lane on its own
    LOG = auto()  # place in the step log, -1 for plans
    SAVE = auto()  # next time to save at, absolute in the bank
    SAVE_FIRST = auto()
    SAVE_END = auto()
