"""Errors of training: a small tree; each message is one line for the user, reported by `reported`.

TrainingError                exit 1   something failed, such as a loss that is no longer finite
|- DataError                 exit 1   a data file is missing, damaged or unsuitable
|- StateError                exit 1   the saved state of a run cannot be read, written or used
|- UsageError                exit 2   an option or a recipe has a value that is not allowed
`- Stopped                   exit 130 Ctrl-C, or 143 on SIGTERM; the message says how to resume
"""

import sys
from collections.abc import Callable


class TrainingError(Exception):
    """Base of all errors that the command reports as one line."""

    exit_code = 1


class DataError(TrainingError):
    """A data file is missing, damaged or unsuitable."""


class StateError(TrainingError):
    """The saved state of a run cannot be read, written or used."""


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


def reported(program: str, extras: str, run: Callable[[], int | None]) -> int:
    """Run a command; report an error in one line on stderr that begins with the program's name.

    Args:
        program: name of the program.
        extras: extras of this package that the command needs.
        run: the command; returns its exit code, or None for 0.

    Returns:
        The exit code: 0, 1 (failed), 2 (wrong usage), 130 or 143 (stopped).
    """
    try:
        return run() or 0
    except TrainingError as error:
        message, code = str(error), error.exit_code
    except KeyboardInterrupt:
        message, code = "stopped; run the same command to resume", 130
    except ModuleNotFoundError as error:
        message, code = f"{error.name} is not installed; run pip install -e '.[{extras}]'", 1
    print(f"{program}: {message}", file=sys.stderr)
    return code
