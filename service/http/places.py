"""Places for connections: how many are held, which of them give way, and a few kept for health and metrics."""

from collections import OrderedDict
from typing import Protocol

KEPT = 16
"""Connections beyond the limit that are taken to answer health and metrics."""


class Holder(Protocol):
    """What holds a place."""

    def give_way(self) -> None:
        """End the connection now: its place is given to another one."""
        ...


class Places:
    """Who holds one of `most` places or of those kept beyond them.

    A connection is idle unless a request on it is being answered. Where all places are taken, the one that has been
    idle longest gives way, so that sockets that nobody uses keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._common, self._kept = _Room(most), _Room(KEPT)

    def take(self, holder: Holder) -> bool | None:
        """Take a place; return whether it is one of the kept ones, None where there is none at all."""
        for room in (self._common, self._kept):
            if room.take(holder):
                return room is self._kept
        return None

    def rest(self, holder: Holder) -> None:
        """Say that a holder is idle from now on."""
        for room in (self._common, self._kept):
            room.rest(holder)

    def work(self, holder: Holder) -> None:
        """Say that a holder is no longer idle."""
        for room in (self._common, self._kept):
            room.idle.pop(holder, None)

    def leave(self, holder: Holder) -> None:
        """Give a place back; without one nothing happens."""
        for room in (self._common, self._kept):
            room.leave(holder)


class _Room:
    def __init__(self, most: int) -> None:
        self.most = most
        self.held: set[Holder] = set()
        self.idle: OrderedDict[Holder, None] = OrderedDict()  # longest first

    def take(self, holder: Holder) -> bool:
        if len(self.held) >= self.most:
            if not self.idle:
                return False
            longest = next(iter(self.idle))
            self.leave(longest)
            longest.give_way()
        self.held.add(holder)
        self.idle[holder] = None
        return True

    def rest(self, holder: Holder) -> None:
        if holder in self.held:
            self.idle[holder] = None

    def leave(self, holder: Holder) -> None:
        self.held.discard(holder)
        self.idle.pop(holder, None)
