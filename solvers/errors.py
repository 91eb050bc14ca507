"""SolverError, and the statuses that a lane can end with."""

from __future__ import annotations

from enum import StrEnum


class SolverError(ValueError):
    """The settings or inputs of a solver are invalid.

    Attributes:
        field: the argument at fault, by the name it has in `integrate` and in the HTTP request.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Status(StrEnum):
    """How a lane ended, ordered from best to worst; responses report the worst by this order."""

    SUCCESS = "success"
    MAX_NFE = "max_nfe"
    STEP_UNDERFLOW = "step_underflow"
    NON_FINITE = "non_finite"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


RUNNING = 0
"""The code of a lane that has not ended; `CODES[status]` are the others, and `STATUSES[code - 1]` their statuses."""

STATUSES: tuple[Status, ...] = tuple(Status)
CODES: dict[Status, int] = {status: code for code, status in enumerate(STATUSES, start=1)}
