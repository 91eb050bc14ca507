"""Looking at the model repository again and again, so that new versions appear without a restart."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from models.repository import RepositoryError

_log = logging.getLogger("pathline")


class Watch:
    """A thread that calls `refresh` at intervals, at low priority; a look costs a few system calls a version."""

    def __init__(self, refresh: Callable[[], object], every_s: float) -> None:
        """Start the thread.

        Args:
            refresh: looks at the repository; a `RepositoryError` is logged once, until it can be read again.
            every_s: seconds between two looks.
        """
        self._refresh, self._every_s = refresh, every_s
        self._stopped = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="pathline-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # not every system has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while not self._stopped.wait(self._every_s):
            try:
                self._refresh()
                said = ""
            except RepositoryError as error:
                said = f"the loaded models stay in use: {error}"
            except Exception as error:
                said = f"looking for new models failed: {type(error).__name__}: {error}"
            if said and said != self._said:
                _log.error(said)
            self._said = said
