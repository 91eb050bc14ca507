"""What a run shows and obeys: progress on stderr, logs for TensorBoard, and stop signals."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from training.folders import make_writable

if TYPE_CHECKING:
    from training.trainer import Trainer

_LINE_EVERY, _TELL_EVERY = 10.0, 2.0  # seconds between two lines in a log, and between two calls of `tell`


@contextlib.contextmanager
def progress_bar(
    name: str, total: int, initial: int = 0, tell: Callable[[float], None] = lambda left_s: None
) -> Iterator[Callable[[float | None], None]]:
    """Show steps done, the loss and the time left: a bar on a terminal, an occasional line in a log file.

    Args:
        name: the model in training.
        total: total number of steps.
        initial: steps done before this process.
        tell: called every two seconds with the seconds left.

    Yields:
        A function that counts a step; its argument is the mean loss of the last whole epoch, or None in the first.
    """
    done, begin = initial, time.monotonic()
    line_at = told_at = begin

    def step(loss: float | None) -> None:
        nonlocal done, line_at, told_at
        done += 1
        now = time.monotonic()
        left_s = (now - begin) / (done - initial) * (total - done)
        shown = "" if loss is None else f"loss {loss:.4f}"
        if now - told_at > _TELL_EVERY:
            told_at = now
            tell(left_s)
        bar.set_postfix_str(shown, refresh=False)
        bar.update()
        if bar.disable and now - line_at > _LINE_EVERY:
            line_at = now
            parts = filter(None, [f"{name}: step {done}/{total}", shown, f"{left_s:.0f} s left"])
            print(", ".join(parts), file=sys.stderr, flush=True)

    with tqdm(
        total=total, initial=initial, desc=name, unit="step", dynamic_ncols=True, file=sys.stderr,
        disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        yield step


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Only record the first Ctrl-C or SIGTERM, in the list yielded; a second one has its usual effect.

    A half-done step would leave weights that a resumed run could not reproduce, so the loop finishes the step and then
    checks for a request.
    """
    received: list[int] = []
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield received
    finally:
        restore()


class Board:
    """TensorBoard logs of one run: loss, learning rate, held-out loss by time, and the quality at the end.

    The horizontal axis is the number of steps done. A run that resumes after being killed hides what was logged after
    its last saved state. Logs are not essential: if they can no longer be written, a line says so and training goes on.

    Args:
        folder: the logs of this run; None logs nothing.
        step: steps that the run has done.

    Raises:
        TrainingError: the folder cannot be written to.
    """

    def __init__(self, folder: Path | None, step: int) -> None:
        self.folder = folder
        self._writer: Any = None
        if folder is None:
            return
        from torch.utils.tensorboard import SummaryWriter

        make_writable(folder, "TensorBoard folder")
        with self._aside():
            self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def epoch(self, trainer: "Trainer") -> None:
        """Log the epoch that has just ended."""
        values = {"loss/training": trainer.losses[-1], "learning_rate": trainer.learning_rate}
        if trainer.seconds > 0:
            values["steps_per_second"] = trainer.step / trainer.seconds
        if trainer.validations and trainer.validations[-1][0] == trainer.step:
            by_time = trainer.validations[-1][1]
            bins = len(by_time)
            values["loss/held_out"] = sum(by_time) / bins
            for part, loss in enumerate(by_time):
                values[f"loss_by_time/{part / bins:.1f}-{(part + 1) / bins:.1f}"] = loss
        self.log(values, trainer.step)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log numbers by their names after a number of steps."""
        with self._aside():
            for name, value in values.items() if self._writer else ():
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write pending logs to disk; called before a state is saved, so that the logs up to it are complete."""
        with self._aside():
            if self._writer:
                self._writer.flush()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Stop logging, not training, if a log cannot be written."""
        try:
            yield
        except OSError as error:
            self._writer = None
            reason = error.strerror or error
            print(f"training: TensorBoard logs in {self.folder} end here: {reason}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write pending logs and close the file."""
        with self._aside():
            if self._writer:
                self._writer.close()
