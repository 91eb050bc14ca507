"""The watch checks the files when they change and at intervals, even after errors."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from models.repository import RepositoryError
from service.registry.watch import Watch


@contextmanager
def watching(root: Path, refresh: Callable[[], object], every_s: float = 0.001) -> Iterator[None]:
    watch = Watch(root, refresh, every_s)
    try:
        yield
    finally:
        watch.stop()


@pytest.mark.parametrize("error", [RepositoryError("gone"), ValueError("odd")])
def test_goes_on_after_errors_and_says_them_once(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = threading.Semaphore(0)

    def refresh() -> None:
        seen.release()
        raise error

    with caplog.at_level(logging.ERROR), watching(tmp_path, refresh):
        for _ in range(5):
            assert seen.acquire(timeout=60)
    assert len(caplog.records) == 1
    assert str(error) in caplog.text


def test_a_change_is_seen_before_the_next_look(tmp_path: Path) -> None:
    seen = threading.Semaphore(0)
    with watching(tmp_path, seen.release, 1000.0):
        for number in range(10):  # the first may come before the watch listens
            (tmp_path / str(number)).mkdir()
            if seen.acquire(timeout=3):
                return
    raise AssertionError("no look at ten changes")


def no_notifications(*_: Any, **__: Any) -> Any:
    raise OSError("inotify: too many open files")


@pytest.mark.parametrize("lacks", ["notifications", "folder"])
def test_looks_at_intervals_where_nothing_tells_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks == "notifications":
        monkeypatch.setattr(watchfiles, "watch", no_notifications)
    else:
        shutil.rmtree(tmp_path)
    seen = threading.Semaphore(0)
    with watching(tmp_path, seen.release):
        for _ in range(5):
            assert seen.acquire(timeout=60)


def test_stops_at_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path, lambda: None, 1000.0)
    watch.stop()
    assert not watch._thread.is_alive()
