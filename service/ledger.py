"""Memory of the requests in progress: reserved before anything is allocated, released when a request is over.

A request is over when its answer is out, or nobody waits for it any more, and the engine has let go of its jobs. So
clients that read slowly are counted too.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from service.errors import Kind, ProblemError

_FIRST_GUESS_S = 1.0
"""How long a request is taken to hold its memory before any has ended."""


Ends = Mapping["Future[Any]", float]

Take = Callable[[int, float], "Hold"]
"""Sets bytes aside until a deadline, as `Ledger.take`."""


class Hold:
    """What one request has reserved.

    Attributes:
        bytes: how much.
        jobs: those it is kept for.
    """

    def __init__(self, ledger: "Ledger", number: int, wanted: int, deadline: float) -> None:
        self.bytes = wanted
        self.begun, self.deadline = ledger.now(), deadline
        self._ledger, self._number = ledger, number
        self._waits, self._over = 1, False  # for the request, and for each of its jobs
        self.jobs: list[Future[Any]] = []
        self._lock = threading.Lock()

    def until(self, future: "Future[Any]") -> None:
        """Keep it until a job is done, too."""
        with self._lock:
            self._waits += 1
            self.jobs.append(future)
        future.add_done_callback(lambda _: self._end_one())

    def over(self) -> None:
        """The request is over; a second call does nothing."""
        with self._lock:
            again, self._over = self._over, True
        if not again:
            self._end_one()

    def grow(self, more: int) -> None:
        """Reserve more, for what turns out to be larger; it is allocated already, so it is never refused."""
        self._ledger._grow(self, more)

    def _end_one(self) -> None:
        with self._lock:
            self._waits -= 1
            ended = self._waits == 0
        if ended:
            self._ledger._end(self._number)


class Ledger:
    """All holds of one service; used from any thread.

    Args:
        limit: bytes that all of them may have together.
        now: a clock, as `time.monotonic`.
        ends_s: tells of some jobs how many seconds they still take; see `service.ports.Engine`.
    """

    def __init__(
        self, limit: int, now: Callable[[], float] = time.monotonic, ends_s: Callable[[], Ends] = dict
    ) -> None:
        self.now, self._limit, self._ends_s = now, limit, ends_s
        self._in_hand = 0
        self._holds: dict[int, Hold] = {}
        self._numbers = itertools.count()
        self._mean_s = _FIRST_GUESS_S  # how long memory was held lately
        self._lock = threading.Lock()

    @property
    def in_hand(self) -> int:
        """Bytes that are reserved now."""
        return self._in_hand

    def check(self, wanted: int) -> None:
        """Refuse what could not be had even alone.

        Raises:
            ProblemError: 413.
        """
        if wanted > self._limit:
            detail = (
                f"this request needs {wanted:,} bytes of memory for its states, steps and answer, over the limit of "
                f"{self._limit:,} (PATHLINE_MAX_JOB_BYTES); ask for fewer samples and page with first_index, or save "
                "and trace less"
            )
            raise ProblemError(Kind.JOB_TOO_LARGE, detail, needed_bytes=wanted, limit_bytes=self._limit)

    def take(self, wanted: int, deadline: float) -> Hold:
        """Reserve memory.

        Args:
            wanted: how many bytes.
            deadline: when the request will be answered at the latest, by the clock.

        Raises:
            ProblemError: 413 for more than there ever is, 429 for more than there is now.
        """
        self.check(wanted)
        with self._lock:
            self._check_room(wanted)
            number = next(self._numbers)
            hold = self._holds[number] = Hold(self, number, wanted, deadline)
            self._in_hand += wanted
            return hold

    def extend(self, hold: Hold, more: int) -> None:
        """Set more aside for what is still to come.

        Raises:
            ProblemError: as `take`; what was set aside before is kept.
        """
        self.check(hold.bytes + more)
        with self._lock:
            self._check_room(more)
            hold.bytes += more
            self._in_hand += more

    def _check_room(self, wanted: int) -> None:
        missing = self._in_hand + wanted - self._limit
        if missing <= 0:
            return
        wait_s = self._until_free(missing)
        wait = max(1, int(-(-wait_s // 1)))
        detail = (
            f"requests in progress hold {self._in_hand:,} of {self._limit:,} bytes (PATHLINE_MAX_JOB_BYTES) and this "
            f"one needs {wanted:,}; try again in {wait} s"
        )
        raise ProblemError(Kind.OVERLOADED, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait_s)

    def _until_free(self, missing: int) -> float:
        """Seconds until so many bytes are given back: when the jobs that they are kept for are forecast to be done.

        Where nobody knows that, each is taken to be held as long as those before.
        """
        now, forecast = self.now(), self._ends_s()
        ends: list[tuple[float, int]] = []
        for hold in self._holds.values():
            held = now - hold.begun
            left = self._mean_s - held if held < self._mean_s else held  # one that takes longer: as long again
            left = max((forecast[job] for job in hold.jobs if job in forecast), default=left)
            ends.append((min(left, max(hold.deadline - now, 0.1)), hold.bytes))
        for left, given in sorted(ends):
            missing -= given
            if missing <= 0:
                return max(0.1, left)
        return _FIRST_GUESS_S  # not reached: all together they have the limit or more

    def _grow(self, hold: Hold, more: int) -> None:
        with self._lock:
            hold.bytes += more
            self._in_hand += more

    def _end(self, number: int) -> None:
        with self._lock:
            hold = self._holds.pop(number)
            self._in_hand -= hold.bytes
            weight = min(0.5, hold.bytes / self._limit)  # small ones hardly tell how long memory is held
            self._mean_s += (self.now() - hold.begun - self._mean_s) * weight
