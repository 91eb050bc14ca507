"""Stop signals: Ctrl-C and SIGTERM take effect between steps, not in the middle of one."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Context in which the first Ctrl-C or SIGTERM is only recorded; a second one has its usual effect.

    A half-done step would leave weights that a resumed run could not reproduce, so the loop finishes the step and then
    checks for a request.

    Attributes:
        signum: the signal received, or None.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signum is not None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
