"""The watch looks again and again, whatever happens."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from models.repository import RepositoryError
from service.registry.watch import Watch


@contextmanager
def watching(refresh: object, every_s: float = 0.001) -> Iterator[None]:
    watch = Watch(refresh, every_s)  # type: ignore[arg-type]
    try:
        yield
    finally:
        watch.stop()


@pytest.mark.parametrize("error", [RepositoryError("gone"), ValueError("odd")])
def test_goes_on_after_errors_and_says_them_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Semaphore(0)

    def refresh() -> None:
        seen.release()
        raise error

    with caplog.at_level(logging.ERROR), watching(refresh):
        for _ in range(5):
            assert seen.acquire(timeout=10)
    assert len(caplog.records) == 1
    assert str(error) in caplog.text


def test_stops_at_once() -> None:
    watch = Watch(lambda: None, 1000.0)
    watch.stop()
    assert not watch._thread.is_alive()
