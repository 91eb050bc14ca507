"""Errors of training: a small tree; each message is one line for the user.

TrainingError                exit 1   something failed
|- DataError                 exit 1   a data file is missing, damaged or unsuitable
|- StateError                exit 1   the saved state of a run cannot be read, written or used
|- Diverged                  exit 1   the loss or a weight is no longer a finite number
|- UsageError                exit 2   an option or a recipe has a value that is not allowed
`- Stopped                   exit 130 Ctrl-C, or 143 on SIGTERM; the message says how to resume
"""


class TrainingError(Exception):
    """Base of all errors that the command reports as one line."""

    exit_code = 1


class DataError(TrainingError):
    """A data file is missing, damaged or unsuitable."""


class StateError(TrainingError):
    """The saved state of a run cannot be read, written or used."""


class Diverged(TrainingError):  # noqa: N818  (named for what happened)
    """The loss or a weight is no longer a finite number."""


class UsageError(TrainingError):
    """An option or a recipe has a value that is not allowed."""

    exit_code = 2


class Stopped(TrainingError):  # noqa: N818  (not a fault)
    """A signal stopped the run; its state was saved first.

    Attributes:
        exit_code: 128 + the signal's number, as shells report it.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum
