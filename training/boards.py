"""TensorBoard logs of a run; the package is optional and only imported if logs are requested."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from training.errors import UsageError
from training.evaluation import Quality
from training.files import make_writable
from training.trainer import Trainer
from training.validation import BINS


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
        require()
        from torch.utils.tensorboard import SummaryWriter

        make_writable(folder, "TensorBoard folder")
        self.folder = folder
        self._writer: Any = None
        with self._aside():
            self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def epoch(self, trainer: Trainer) -> None:
        """Log the epoch that has just ended."""
        values = {"loss/training": trainer.losses[-1], "learning_rate": trainer.learning_rate}
        if trainer.seconds > 0:
            values["steps_per_second"] = trainer.step / trainer.seconds
        if trainer.validations and trainer.validations[-1][0] == trainer.step:
            by_time = trainer.validations[-1][1]
            values["loss/held_out"] = sum(by_time) / BINS
            for part, loss in enumerate(by_time):
                values[f"loss_by_time/{part / BINS:.1f}-{(part + 1) / BINS:.1f}"] = loss
        self._log(values, trainer.step)

    def quality(self, quality: Quality, step: int) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._aside():
            if self._writer is not None:
                self._writer.close()


def require() -> None:
    """Check, before any work, that TensorBoard is installed.

    Raises:
        UsageError: the package is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs the package tensorboard; run pip install -c constraints.txt -e '.[tensorboard]'"
        )
