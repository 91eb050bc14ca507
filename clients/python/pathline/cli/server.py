"""Commands of the server, where it is installed beside the SDK; each runs the server's own, with the same options."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

COMMANDS = {
    "serve": ("service", (), "start a service: --host, --port, --models-dir"),
    "train": ("training", ("fit",), "train and publish a model on your rows or pictures"),
    "evaluate": ("training", ("evaluate",), "measure how good a model is"),
    "tune": ("training", ("tune",), "learn solvers for a model"),
    "import": ("models", ("import",), "turn other people's weights into a model"),
    "check": ("models", ("check",), "load and verify every version of a repository"),
    "bulk": ("fleet", ("sample",), "write samples to files with any number of workers"),
    "verify": ("fleet", ("verify",), "reread and check the rows of a bulk job"),
}
"""For each command the server's package and the first arguments of its own command, and what it does."""


def run(arguments: Sequence[str]) -> int:
    """Run a command of the server, the first argument, and return its exit status; 2 if the server is not installed."""
    package, first, _ = COMMANDS[arguments[0]]
    try:
        importlib.metadata.distribution("pathline-server")  # names such as `training` might be somebody else's
        program = importlib.import_module(f"{package}.__main__")
    except ImportError as error:
        lacking = "the server" if isinstance(error, importlib.metadata.PackageNotFoundError) else error.name
        print(
            f"pathline {arguments[0]}: {lacking} is not installed beside this SDK; in a copy of the repository run "
            "make setup, or pip install -e '.[training,fleet]' -e clients/python",
            file=sys.stderr,
        )
        return 2
    return int(program.main([*first, *arguments[1:]]) or 0)
