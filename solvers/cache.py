"""A cache that counts bytes: the values used last, as many as fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LARGEST = 8
"""A value of more than this share of the limit is not kept: it would drive out many others."""


class BytesCache(Generic[K, V]):
    """Values by key; those used last whose sizes together are within a limit. Safe to use from any thread.

    Args:
        limit: bytes.
        size: value -> bytes.
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self._limit, self._size = limit, size
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made now if it is not at hand; what `make` raises is raised each time."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        size = self._size(value)
        with self._lock:
            if key in self._values:  # another thread was faster, and equal keys share one value
                return self._values[key][0]
            if size * _LARGEST <= self._limit:
                self._values[key] = value, size
                self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= self._values.popitem(last=False)[1][1]
        return value
