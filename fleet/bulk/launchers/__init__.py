"""Launchers make the shards of a job; `fleet.bulk.run` decides which, and handles failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from fleet.errors import FleetError, TargetError, UsageError

if TYPE_CHECKING:  # a driver needs no torch, which it brings
    from fleet.bulk.target import Receipt


@dataclass(frozen=True)
class Event:
    """News of a shard.

    Attributes:
        shard: which one.
        kind: `progress`: about `rows` of its rows are done; `done`: it has its receipt; `failed`: it was given up, and
            may be tried again; `fatal`: no shard can be made, and why.
        rows: of a shard in progress.
        said: the error.
        receipt: of a shard that is done.
    """

    shard: int
    kind: Literal["progress", "done", "failed", "fatal"]
    rows: int = 0
    said: str = ""
    receipt: Receipt | None = None


Tell = Callable[[Event], None]


class Launcher(Protocol):
    """Makes shards, several at a time."""

    @property
    def slots(self) -> int:
        """Number of shards that can be made at the same time."""
        ...

    def begin(self, shard: int) -> None:
        """Have a shard made; at most `slots` at a time."""
        ...

    def wait(self, tell: Tell) -> None:
        """Wait for news, for a second at most, and tell them."""
        ...

    def close(self) -> None:
        """End all workers, at once."""
        ...


def ended(shard: int, error: BaseException) -> Event:
    """The event of an exception in making a shard; it is fatal if the target or the job is at fault."""
    fatal = isinstance(error, TargetError | UsageError)
    said = str(error) if isinstance(error, FleetError) else f"{type(error).__name__}: {error}"
    return Event(shard, "fatal" if fatal else "failed", said=said)
