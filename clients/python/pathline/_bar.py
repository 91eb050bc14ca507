"""A progress bar on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pathline._events import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

Follow = Callable[[Progress], None]

_EVERY_S = 0.5  # also the time before it is first drawn, so that short work shows no bar
_WIDTH = 30


class Bar:
    """Shows the progress of a ``with`` block, with the elapsed and the remaining time; erased at the end.

    A separate thread draws it, so that the elapsed time advances between two updates.

    Args:
        always: Draw it even if stderr is not a terminal, as in a notebook.
    """

    def __init__(self, always: bool = False) -> None:
        self._share, self._left, self._rate = 0.0, None, None
        self._shown = always or sys.stderr.isatty()
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="pathline-bar", daemon=True)

    def update(self, share: float, seconds_left: float | None, rate: float | None = None) -> None:
        """Set the share of the work done, the seconds left, and the samples per second."""
        self._share, self._left, self._rate = share, seconds_left, rate

    def follow(self, progress: Progress) -> None:
        """Note the progress of a request."""
        self.update(progress.share, progress.seconds_left, progress.fields.get("rows_per_s"))

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _draw(self) -> None:
        drawn = 0
        while not self._over.wait(_EVERY_S):
            line = text(self._share, time.monotonic() - self._began, self._left, self._rate)
            sys.stderr.write("\r" + line.ljust(drawn))
            sys.stderr.flush()
            drawn = max(drawn, len(line))
        sys.stderr.write(f"\r{' ' * drawn}\r" if drawn else "")
        sys.stderr.flush()


@contextmanager
def following(progress: bool | Follow) -> Iterator[Follow]:
    """Yield the function to call with the progress: the user's own, or for True that of a bar."""
    if callable(progress):
        yield progress
    else:
        with Bar(always=True) as bar:
            yield bar.follow


def text(share: float, elapsed_s: float, seconds_left: float | None, rate: float | None = None) -> str:
    """Return a bar for a share of the work, with the elapsed time and, if known, the rate and the time left."""
    share = min(1.0, share)
    left = "" if seconds_left is None else f", about {_time(seconds_left)} left"
    pace = "" if rate is None else f", {rate:,.0f} samples/s"
    return f"[{'#' * int(_WIDTH * share):<{_WIDTH}}] {100 * share:3.0f} %, {_time(elapsed_s)}{pace}{left}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02} s"
