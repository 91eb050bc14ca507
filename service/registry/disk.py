"""The model repository as the registry sees it: entries kept up to date with their files, and a watch for changes."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import watchfiles

from models.checkpoint.card import CheckpointError, read_card
from models.repository import Repository, RepositoryError, Signature, UnknownModel
from service.registry.entry import ModelEntry
from service.registry.version import ModelVersion

MAX_PASSED_OVER = 50
"""Maximum number of passed-over entries to report."""

_STEP_MS, _GATHER_MS = 250, 2000
"""Milliseconds without a change before a refresh, and the maximum while changes keep coming."""

_log = logging.getLogger("pathline")


class Disk:
    """The repository on disk, with its entries that are not models.

    Attributes:
        repository: the folder of all models.
        passed_over: (path, reason) of entries that are neither a model nor a version of one.
    """

    def __init__(self, root: Path) -> None:
        """Check that the repository can be read.

        Raises:
            RepositoryError: the repository is missing or cannot be read.
        """
        self.repository = Repository(root)
        self.repository.names()
        self.passed_over: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        """The names of all models; entries that are passed over are logged once.

        Raises:
            RepositoryError: the repository cannot be read.
        """
        names = self.repository.names()
        found = [(self.repository.within(path), reason) for path, reason in self.repository.passed_over()]
        new = [each for each in found if each not in self.passed_over]
        self.passed_over = tuple(found)
        for path, reason in new[:MAX_PASSED_OVER]:
            _log.warning("%s: %s", path, reason)
        if len(new) > MAX_PASSED_OVER:
            _log.warning("%d more are passed over; `python -m models list` shows all", len(new) - MAX_PASSED_OVER)
        return names

    def summary(self) -> dict[str, Any]:
        """The members of ``GET /v1/models`` about entries that are not models."""
        found = [{"path": path, "reason": reason} for path, reason in self.passed_over[:MAX_PASSED_OVER]]
        return {"passed_over": found, "more_passed_over": len(self.passed_over) - len(found)}

    def reason(self, error: object) -> str:
        """The text of an error without the repository's path, which clients need not know."""
        return str(error).replace(f"{self.repository.root}/", "")

    def with_versions(self, entry: ModelEntry) -> ModelEntry:
        """An entry with the versions now on disk, and the current one until another takes its place.

        Raises:
            RepositoryError: the versions cannot be read.
        """
        try:
            versions = tuple(sorted(self.repository.versions(entry.name)))
        except UnknownModel:
            versions = ()
        return entry.with_versions(versions, entry.current if versions and entry.current in entry.loaded else None)

    def compared(self, entry: ModelEntry, version: int, now: float, retry_failed: bool) -> ModelEntry:
        """An entry that notes whether the files of a version have changed since it was tried.

        Args:
            entry: the entry to update.
            version: the version to compare.
            now: the time, by the registry's clock.
            retry_failed: whether to retry failures even if their files have not changed.
        """
        fault, tried, loaded = entry.broken.get(version), entry.signatures.get(version), version in entry.loaded
        if not loaded and fault is not None and retry_failed:
            return entry.untried(version)
        if tried is None:
            return entry
        try:
            found = self.repository.signature(entry.name, version)
            same = found == tried
            if loaded and not same and self._is_copy(entry.loaded[version], tried, found):
                entry, same = entry.with_signature(version, found), True
        except (RepositoryError, LookupError) as error:
            reason = f"{self.reason(error)}; the loaded version stays in use"
            return entry.with_fault(version, reason, now) if loaded else entry
        if loaded and same:
            return entry.without_fault(version)
        if loaded:
            reason = f"{entry.name}/{version}: was changed after it was loaded; the loaded version stays in use"
            return entry.with_fault(version, f"{reason}; put changes into a new version, or restart", now)
        if not same:
            return entry.untried(version)
        if fault is not None and not fault.transient:  # just checked; no need to check again at once
            return entry.with_fault(version, fault.reason, now)
        return entry

    def _is_copy(self, model: ModelVersion, before: Signature, now: Signature) -> bool:
        """Whether files that are not the loaded ones have their sizes, and a card with the same digest.

        So it is after `touch`, when a linked checkout is replaced by an equal one, and on mounts that renumber files.
        """
        if [state and state[1] for state in before] != [state and state[1] for state in now]:
            return False
        try:
            card = read_card(self.repository.resolve(model.name, model.version))
        except CheckpointError:
            return False
        return card.card_sha256 == model.card.card_sha256


class Watch:
    """A thread that calls `refresh` when files change and at intervals, at low priority.

    Not every file system reports changes (network mounts do not), so the watch also refreshes at intervals, at a cost
    of a few system calls per version. It refreshes soon after a change, and at the same intervals while more changes
    follow, as during a copy.
    """

    def __init__(self, root: Path, refresh: Callable[[], object], every_s: float) -> None:
        """Start the thread.

        Args:
            root: the repository.
            refresh: brings the registry up to date; a repeated error is logged once, until a refresh succeeds.
            every_s: maximum seconds between two refreshes.
        """
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
                    self._try_refresh()

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
            if not self._try_refresh():
                return

    def _try_refresh(self) -> bool:
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
