"""A cache that counts bytes: the values used last, as many as fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BytesCache(Generic[K, V]):
    """Values by key; those used last whose sizes together are within a limit. Safe to use from any thread.

    Args:
        limit: bytes; a value of more than that is not kept.
        size: value -> bytes.
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self.limit, self._size = limit, size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def find(self, key: K) -> V | None:
        """Return the value of a key; None if it is not at hand."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def keep(self, key: K, value: V) -> V:
        """Keep a value, unless there is one; return the one at hand, as equal keys share a value."""
        size = self._size(value)
        with self._lock:
            if key in self._values or size > self.limit:
                return self._values.get(key, value)
            self._values[key] = value
            self.bytes += size
            while self.bytes > self.limit:
                self.bytes -= self._size(self._values.popitem(last=False)[1])
        return value
