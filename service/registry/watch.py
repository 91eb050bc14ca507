"""A thread that keeps the registry up to date with the repository's files."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import watchfiles

from models.repository import RepositoryError

_STEP_MS, _GATHER_MS = 250, 2000
"""Milliseconds without a change before a refresh, and the maximum while changes keep coming."""

_log = logging.getLogger("pathline")


class Watch:
    """Calls `refresh` when files change and at intervals, in a thread of low priority.

    Not every file system reports changes (network mounts do not), so the watch also refreshes at intervals, at a cost
    of a few system calls per version. It refreshes soon after a change, and at the same intervals while more changes
    follow, as during a copy.
    """

    def __init__(self, root: Path, refresh: Callable[[], object], every_s: float) -> None:
        """Start the thread; an error of `refresh` is logged once, until a refresh succeeds."""
        self._root, self._refresh, self._every_s = root, refresh, every_s
        self._stopped = threading.Event()
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="pathline-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # not every system has thread priorities
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while not self._stopped.is_set():
            try:
                self._follow()
            except Exception as error:  # no notifications, no folder, a name that is not UTF-8: refresh at intervals
                _log.debug("no notifications of changes in %s: %s", self._root, error)
                if not self._stopped.wait(self._every_s):
                    self._succeeds()

    def _follow(self) -> None:
        """Refresh after each change, until a refresh fails: a recreated folder must be watched again."""
        max_ms = max(1, round(self._every_s * 1000))
        batches = watchfiles.watch(
            self._root,
            watch_filter=None,
            debounce=min(_GATHER_MS, max_ms),
            step=min(_STEP_MS, max_ms),
            rust_timeout=max_ms,
            yield_on_timeout=True,
            stop_event=self._stopped,
            raise_interrupt=False,
        )
        changed_at = -self._every_s
        for changes in batches:
            if changes:
                self._stopped.wait(max(0.0, changed_at + self._every_s - time.monotonic()))
                changed_at = time.monotonic()
            if not self._succeeds():
                return

    def _succeeds(self) -> bool:
        try:
            self._refresh()
            message = ""
        except RepositoryError as error:
            message = f"the loaded models stay in use: {error}"
        except Exception as error:
            message = f"looking for new models failed: {type(error).__name__}: {error}"
        if message and message != self._last_error:
            _log.error(message)
        self._last_error = message
        return not message
