"""`python -m training` in separate processes, forked from one that has imported torch, which saves seconds."""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")


def _run(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """Run the command: set its environment, write its output to a file, and exit with its code."""
    os.environ.update(environment)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    import torch

    torch.set_num_threads(1)
    from training.__main__ import main

    sys.exit(main(arguments))


class Command:
    """A running command.

    Attributes:
        process: its process; `exitcode` is negative if a signal ended it.
        log: the file of its output and errors.
    """

    def __init__(self, arguments: list[str], log: Path, **environment: str) -> None:
        _CONTEXT.set_forkserver_preload(["training.fit", "sklearn.datasets", "torch._dynamo"])
        self.log = log
        self.process: ForkServerProcess = _CONTEXT.Process(target=_run, args=(arguments, log, environment))
        self.process.start()

    def finish(self, code: int = 0) -> str:
        """Wait for the end and return what it wrote; `code` is the exit status it must have."""
        self.process.join(120)
        message = self.log.read_text() if self.log.exists() else ""
        assert self.process.exitcode == code, message
        return message
