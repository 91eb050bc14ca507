"""Launchers make the shards of a job; `fleet.bulk.run` decides which, and handles failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from pathline.bulk_folder import Receipt
from pathline.errors import BulkConflict

from fleet.errors import FleetError, TargetError, UsageError


@dataclass(frozen=True)
class Event:
    """An event in the making of a shard.

    Attributes:
        shard: which one.
        kind: `progress`: about `rows` of its rows are done; `done`: it has its receipt; `failed`: it could not be made,
            and may be retried; `fatal`: no shard can be made.
        rows: rows done of a shard in progress.
        error: the error.
        receipt: the receipt of a shard that is done.
    """

    shard: int
    kind: Literal["progress", "done", "failed", "fatal"]
    rows: int = 0
    error: str = ""
    receipt: Receipt | None = None


Tell = Callable[[Event], None]


class Launcher(Protocol):
    """Makes shards, several at a time."""

    @property
    def slots(self) -> int:
        """Number of shards that can be made at the same time."""
        ...

    def begin(self, shard: int) -> None:
        """Start to make a shard; at most `slots` at a time."""
        ...

    def wait(self, tell: Tell) -> None:
        """Wait for events, for a second at most, and report them."""
        ...

    def close(self) -> None:
        """Stop all workers immediately."""
        ...


def ended(shard: int, error: BaseException) -> Event:
    """Return the event for an exception in making a shard; it is fatal if the target or the job is at fault."""
    fatal = isinstance(error, TargetError | UsageError | BulkConflict)
    message = str(error) if isinstance(error, FleetError | BulkConflict) else f"{type(error).__name__}: {error}"
    return Event(shard, "fatal" if fatal else "failed", error=message)
