"""SolverError, and the statuses that a lane can end with."""

from __future__ import annotations

from enum import StrEnum


class SolverError(ValueError):
    """A solver was asked for something that it cannot do.

    Attributes:
        field: the argument at fault, by the name it has in `integrate` and in the HTTP request.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Status(StrEnum):
    """How a lane ended. The order is from best to worst; `worst` picks by it."""

    SUCCESS = "success"
    MAX_NFE = "max_nfe"
    STEP_UNDERFLOW = "step_underflow"
    NON_FINITE = "non_finite"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


RUNNING = 0
"""The code of a lane that has not ended; `CODES[status]` are the others."""

STATUSES: tuple[Status, ...] = tuple(Status)
CODES: dict[Status, int] = {status: code for code, status in enumerate(STATUSES, start=1)}


def status_of(code: int) -> Status:
    """The status behind a lane's integer code (1, 2, ...)."""
    return STATUSES[code - 1]
