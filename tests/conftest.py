"""Fixtures for all tests."""

import os
import signal

import pytest

# One thread for torch, here and in the processes that tests start: workers share the cores, and threads that wait spin.
os.environ["OMP_NUM_THREADS"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes background processes ignore Ctrl-C, and children inherit that; the tests of Ctrl-C need it enabled.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Of one scope for all, so that tests can share a started service."""
    return "asyncio"
