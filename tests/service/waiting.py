"""Waiting for other threads and processes."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False
