"""`python -m training` in processes of their own, forked from one that has imported torch."""

import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.processes import FORK, redirect


def _run(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """Run the command: set its environment, write its output to a file, and exit with its code."""
    os.environ.clear()
    os.environ.update(environment)
    redirect(log)
    from training.__main__ import main

    sys.exit(main(arguments))


class Command:
    """A running command.

    Attributes:
        process: its process; `exitcode` is negative if a signal ended it.
        log: the file of its output and errors.
    """

    def __init__(self, arguments: list[str], log: Path, **environment: str) -> None:
        self.log = log
        self.process: ForkServerProcess = FORK.Process(
            target=_run, args=(arguments, log, {**os.environ, **environment})
        )
        self.process.start()

    def finish(self, code: int = 0) -> str:
        """Wait for the end and return what it wrote; `code` is the exit status it must have."""
        self.process.join(120)
        message = self.log.read_text() if self.log.exists() else ""
        assert self.process.exitcode == code, message
        return message
