"""The ledger of memory held by requests in progress: reserved before anything is allocated, released at their end.

A request is over when its response is out or its client has left, and the engine is done with its jobs. So a slow
reader counts, too.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from service.errors import Kind, ProblemError, overloaded

_FIRST_GUESS_S = 1.0
"""Assumed time for which a request holds its memory, until one has ended."""


JOBS = (
    "its states, steps and answer",
    "PATHLINE_MAX_JOB_BYTES",
    "ask for fewer samples and page with first_index, or save and trace less",
)
CONDITIONS = (
    "its conditions",
    "PATHLINE_MAX_CONDITION_BYTES",
    "send one condition for all samples, or smaller ones",
)
"""The purpose of a ledger's memory in words: the data that takes it, name of the limit, advice if more is needed."""


class MemoryOwner(Protocol):
    """What memory is reserved for: an HTTP request, or a bulk job.

    Attributes:
        deadline: end of its time limit, in `time.monotonic`.
        alike: the kind of requests that it belongs to, see `requests.validation`; None if there is none.
    """

    deadline: float
    alike: Any

    def reserve(self, size: int, conditions: int = 0) -> "Hold":
        """Reserve bytes of states, steps and answer, and bytes of conditions; errors as in `Ledger.take`."""
        ...


class Hold:
    """The memory that one request has reserved.

    Attributes:
        bytes: its size.
        begun, deadline: when it was reserved, and the latest end of the request, by the ledger's clock.
        companion: memory of another ledger that is released with it, or None.
    """

    __slots__ = ("_claims", "_ledger", "_released", "begun", "bytes", "companion", "deadline")

    def __init__(self, ledger: "Ledger", size: int, begun: float, deadline: float) -> None:
        self.bytes, self.begun, self.deadline, self._ledger = size, begun, deadline, ledger
        self._claims, self._released = 1, False  # that of the request, and one of each job that outlives it
        self.companion: Hold | None = None

    def until(self, future: Future[Any] | asyncio.Future[Any]) -> None:
        """Keep the memory at least until a job is done."""
        with self._ledger.lock:
            self._claims += 1
        future.add_done_callback(lambda _: self._end_claim())
        if self.companion is not None:
            self.companion.until(future)

    def release(self) -> None:
        """End the request's own claim; a second call does nothing."""
        if not self._released:
            self._released = True
            self._end_claim()
            if self.companion is not None:
                self.companion.release()

    def grow(self, more: int) -> None:
        """Count more bytes for data that turned out larger; they are allocated already, so this is never refused."""
        with self._ledger.lock:
            self.bytes += more
            self._ledger.reserved += more

    def _end_claim(self) -> None:
        with self._ledger.lock:
            self._claims -= 1
            if not self._claims:
                self._ledger.end(self)


class Ledger:
    """The holds of one service; safe to use from any thread.

    Args:
        limit: bytes for all holds together.
        now: a clock like `time.monotonic`.
        purpose: of the memory, such as `JOBS`.

    Attributes:
        reserved: bytes reserved now.
    """

    def __init__(
        self,
        limit: int,
        now: Callable[[], float] = time.monotonic,
        purpose: tuple[str, str, str] = JOBS,
    ) -> None:
        self.now, self._limit, self.reserved = now, limit, 0
        self._what, self._setting, self._advice = purpose
        self._holds: dict[Hold, None] = {}
        self._mean_s = _FIRST_GUESS_S  # how long memory was held recently
        self.lock = threading.Lock()  # of the holds, too

    def take(self, size: int, deadline: float) -> Hold:
        """Reserve memory.

        Args:
            size: bytes.
            deadline: latest end of the request, by the clock.

        Raises:
            ProblemError: 413 for more than the limit, 429 for more than is free now.
        """
        with self.lock:
            if self.reserved + size > self._limit:
                raise self._refusal(size, size)
            hold = Hold(self, size, self.now(), deadline)
            self._holds[hold] = None
            self.reserved += size
            return hold

    def extend(self, hold: Hold, more: int) -> None:
        """Reserve more memory for later data of the same request.

        Raises:
            ProblemError: as in `take`; the earlier reservation is kept.
        """
        with self.lock:
            if self.reserved + more > self._limit:
                raise self._refusal(hold.bytes + more, more)
            hold.bytes += more
            self.reserved += more

    def _refusal(self, size: int, more: int) -> ProblemError:
        """The error for a request of this size in all that would need more than is free now."""
        if size > self._limit:
            detail = (
                f"this request needs {size:,} bytes of memory for {self._what}, over the limit of {self._limit:,} "
                f"({self._setting}); {self._advice}"
            )
            return ProblemError(Kind.JOB_TOO_LARGE, detail, needed_bytes=size, limit_bytes=self._limit)
        reason = (
            f"requests in progress hold {self.reserved:,} of {self._limit:,} bytes ({self._setting}) and this one "
            f"needs {more:,}"
        )
        return overloaded(reason, self._until_free(self.reserved + more - self._limit))

    def _until_free(self, missing: int) -> float:
        """Seconds until the missing bytes are released; a hold is assumed to last as long as those before it."""
        now = self.now()
        ends: list[tuple[float, int]] = []
        for hold in self._holds:
            held = now - hold.begun
            left = self._mean_s - held if held < self._mean_s else held  # overdue: assume as long again
            ends.append((min(left, max(hold.deadline - now, 0.1)), hold.bytes))
        for left, size in sorted(ends):
            missing -= size
            if missing <= 0:
                return max(0.1, left)
        return _FIRST_GUESS_S  # not reached: together they hold the limit or more

    def end(self, hold: Hold) -> None:
        """Free the memory of a hold; the caller has the lock."""
        del self._holds[hold]
        self.reserved -= hold.bytes
        weight = hold.bytes / self._limit  # small holds say little
        self._mean_s += (self.now() - hold.begun - self._mean_s) * (weight if weight < 0.5 else 0.5)
