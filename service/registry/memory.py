"""Which models give way when memory for another is needed: those that were asked for longest ago."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def give_way(sizes: Mapping[Key, int], last_used: Mapping[Key, float], needed: int, limit: int) -> list[Key]:
    """Choose what to unload before something is loaded.

    Args:
        sizes: bytes of what is loaded.
        last_used: when each was asked for last; one that never was goes first.
        needed: bytes of what is to be loaded.
        limit: bytes that all may have together; 0 for any number.

    Returns:
        The least recently used, as few as make room; all of them if nothing else does.
    """
    excess = sum(sizes.values()) + needed - limit
    chosen: list[Key] = []
    for key in sorted(sizes, key=lambda each: last_used.get(each, 0.0)):
        if limit == 0 or excess <= 0:
            break
        chosen.append(key)
        excess -= sizes[key]
    return chosen
