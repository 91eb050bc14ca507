"""Shared parts of the system tests."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest


def until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return the first true result of `condition`; fail after that many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.1)
    return pytest.fail(f"waited {seconds:g} s for {what}")
