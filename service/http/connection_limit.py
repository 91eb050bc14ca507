"""The limit of open connections: which idle ones make room for new ones, and a reserve for health and metrics."""

from collections import OrderedDict
from typing import Protocol

RESERVED = 16
"""Connections accepted beyond the limit to answer health checks and metrics."""


class Holder(Protocol):
    """A connection that occupies a slot."""

    def give_way(self) -> None:
        """Close now: the slot goes to another connection."""
        ...


class ConnectionLimit:
    """Tracks which connections hold one of `most` slots or of the reserved ones.

    A connection is idle unless a request on it is being answered. When all slots are taken, the connection that has
    been idle longest is closed, so that unused sockets keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._common, self._reserved = _Slots(most), _Slots(RESERVED)

    def take(self, holder: Holder) -> bool | None:
        """Take a slot; return whether it is a reserved one, or None if there is none at all."""
        for slots in (self._common, self._reserved):
            if slots.take(holder):
                return slots is self._reserved
        return None

    def mark_idle(self, holder: Holder) -> None:
        """Mark a connection as idle from now on."""
        for slots in (self._common, self._reserved):
            slots.mark_idle(holder)

    def mark_busy(self, holder: Holder) -> None:
        """Mark a connection as no longer idle."""
        for slots in (self._common, self._reserved):
            slots.idle.pop(holder, None)

    def release(self, holder: Holder) -> None:
        """Free the slot of a connection, if it has one."""
        for slots in (self._common, self._reserved):
            slots.release(holder)


class _Slots:
    def __init__(self, most: int) -> None:
        self.most = most
        self.held: set[Holder] = set()
        self.idle: OrderedDict[Holder, None] = OrderedDict()  # longest first

    def take(self, holder: Holder) -> bool:
        if len(self.held) >= self.most:
            if not self.idle:
                return False
            longest = next(iter(self.idle))
            self.release(longest)
            longest.give_way()
        self.held.add(holder)
        self.idle[holder] = None
        return True

    def mark_idle(self, holder: Holder) -> None:
        if holder in self.held:
            self.idle[holder] = None

    def release(self, holder: Holder) -> None:
        self.held.discard(holder)
        self.idle.pop(holder, None)
