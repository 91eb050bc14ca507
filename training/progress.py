"""What a run shows and obeys: progress on stderr, logs for TensorBoard, and stop signals."""

import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from training.errors import UsageError
from training.folders import make_writable

if TYPE_CHECKING:
    from training.evaluation import Quality
    from training.trainer import Trainer

_LINE_EVERY, _TELL_EVERY = 10.0, 2.0  # seconds between two lines in a log, and between two calls of `tell`
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ProgressBar:
    """Shows steps done, the loss and the time left: a bar on a terminal, an occasional line in a log file.

    Args:
        name: the model in training.
        total: total number of steps.
        initial: steps done before this process.
        tell: called every two seconds with the seconds left.
    """

    def __init__(
        self, name: str, total: int, initial: int = 0, tell: Callable[[float], None] = lambda left_s: None
    ) -> None:
        self._name, self._total, self._initial, self._done = name, total, initial, initial
        self._loss: float | None = None
        self._begin = self._line = self._told = time.monotonic()
        self._tell = tell
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=initial, desc=name, unit="step", dynamic_ncols=True, file=sys.stderr)

    def step(self, loss: float | None) -> None:
        """Count a step; `loss` is the mean of the last whole epoch, or None in the first."""
        self._done += 1
        now = time.monotonic()
        left = (now - self._begin) / (self._done - self._initial) * (self._total - self._done)
        if now - self._told > _TELL_EVERY:
            self._told = now
            self._tell(left)
        if self._bar is not None:
            if loss != self._loss and loss is not None:
                self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update()
        elif now - self._line > _LINE_EVERY:
            self._line = now
            shown = "" if loss is None else f", loss {loss:.4f}"
            print(
                f"{self._name}: step {self._done}/{self._total}{shown}, {left:.0f} s left", file=sys.stderr, flush=True
            )
        self._loss = loss

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


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
        self.__exit__()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Board:
    """TensorBoard logs of one run: loss, learning rate, held-out loss by time, and the quality at the end.

    The horizontal axis is the number of steps done. A run that resumes after being killed hides what was logged after
    its last saved state. Logs are not essential: if they can no longer be written, a line says so and training goes on.

    Args:
        folder: the logs of this run.
        step: steps that the run has done.

    Raises:
        UsageError: the package is not installed.
        TrainingError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.require()
        from torch.utils.tensorboard import SummaryWriter

        make_writable(folder, "TensorBoard folder")
        self.folder = folder
        self._writer: Any = None
        with self._aside():
            self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    @staticmethod
    def require() -> None:
        """Check, before any work, that TensorBoard is installed; it is optional.

        Raises:
            UsageError: it is not.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "--tensorboard needs the package tensorboard; run pip install -c constraints.txt -e '.[tensorboard]'"
            )

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
        self._log(values, trainer.step)

    def quality(self, quality: "Quality", step: int) -> None:
        """Log the sample quality of the published network."""
        values = {"quality/swd": quality.swd, "quality/swd_real": quality.swd_real, "quality/nfe": quality.nfe_mean}
        self._log(values, step)

    def flush(self) -> None:
        """Write pending logs to disk; called before a state is saved, so that the logs up to it are complete."""
        with self._aside():
            if self._writer is not None:
                self._writer.flush()

    def _log(self, values: dict[str, float], step: int) -> None:
        with self._aside():
            if self._writer is not None:
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Stop logging, not training, if a log cannot be written."""
        try:
            yield
        except OSError as error:
            self._writer = None
            reason = error.strerror or error
            print(f"training: TensorBoard logs in {self.folder} end here: {reason}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._aside():
            if self._writer is not None:
                self._writer.close()
