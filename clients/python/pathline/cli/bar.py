"""A bar for work that takes a while, on stderr where that is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_EVERY_S = 0.5  # also the time that passes before the first drawing, so that short work shows no bar
_WIDTH = 30


class Bar:
    """Shows how far the work of a ``with`` block is, how long it takes and is going to take; gone at its end.

    It is drawn by a thread of its own, so that time is seen to pass while one long request is under way.

    Args:
        total: What `done` is when the work is finished.
    """

    def __init__(self, total: float) -> None:
        self.done = 0.0
        self._total = total
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="pathline-bar", daemon=True)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _draw(self) -> None:
        drawn = 0
        while not self._over.wait(_EVERY_S):
            line = text(self.done / self._total, time.monotonic() - self._begun)
            sys.stderr.write("\r" + line.ljust(drawn))
            sys.stderr.flush()
            drawn = max(drawn, len(line))
        sys.stderr.write(f"\r{' ' * drawn}\r" if drawn else "")
        sys.stderr.flush()


def text(share: float, elapsed_s: float) -> str:
    """Return a bar for a share of the work, with the time it took and, once that can be told, the time that is left."""
    share = min(1.0, share)
    left = f", about {_time(elapsed_s * (1 - share) / share)} left" if share > 0 else ""
    return f"[{'#' * int(_WIDTH * share):<{_WIDTH}}] {100 * share:3.0f} %, {_time(elapsed_s)}{left}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02} s"
