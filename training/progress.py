"""Progress of a run on stderr: a bar on a terminal, an occasional line in a log file."""

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

_LINE_EVERY = 10.0  # seconds between two lines in a log


class Progress:
    """Shows steps done, the loss and the time left.

    Args:
        name: the model in training.
        total: total number of steps.
        initial: steps done before this process.
    """

    def __init__(self, name: str, total: int, initial: int = 0) -> None:
        self._name = name
        self._total = total
        self._initial = initial
        self._done = initial
        self._loss: float | None = None
        self._begin = self._line = time.monotonic()
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=initial, desc=name, unit="step", dynamic_ncols=True, file=sys.stderr)

    def step(self, loss: float | None) -> None:
        """Count a step; `loss` is the mean of the last whole epoch, or None in the first."""
        self._done += 1
        if self._bar is not None:
            if loss != self._loss and loss is not None:
                self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update()
        elif time.monotonic() - self._line > _LINE_EVERY:
            self._line = time.monotonic()
            print(self._describe(loss), file=sys.stderr, flush=True)
        self._loss = loss

    def _describe(self, loss: float | None) -> str:
        left = (time.monotonic() - self._begin) / (self._done - self._initial) * (self._total - self._done)
        shown = "" if loss is None else f", loss {loss:.4f}"
        return f"{self._name}: step {self._done}/{self._total}{shown}, {left:.0f} s left"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
