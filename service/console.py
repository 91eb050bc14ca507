"""The console: messages at the start (changed settings, loading progress, first commands) and the format of the log."""

import contextlib
import logging
import os
import queue
import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.settings import Settings

_POLL_S = 0.2
_MAX_WAITING = 1_000  # messages
_FLUSH_S = 1.0
_OUT, _ERR = 1, 2  # file descriptors
_PYTHON = ".venv/bin/python"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def opening(settings: Settings) -> str:
    """Return the first lines: the changed settings, and the slow step that follows."""
    changed = settings.changed()
    head = ["Settings that differ from the defaults:", *(f"  {line}" for line in changed)]
    lines = head if changed else ["All settings are at their defaults."]
    return "\n".join([*lines, "Loading torch and the solvers ..."])


class ProgressPrinter:
    """Prints a line each time the list of models still to load changes, from its own thread."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, total: int, pending: Callable[[], list[str]]) -> None:
        """Start printing.

        Args:
            total: The number of models.
            pending: Returns the names of those still to load.
        """
        self._thread = threading.Thread(target=self._run, args=(total, pending), name="pathline-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Print the last line and stop; does nothing before `start` or a second time."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, total: int, pending: Callable[[], list[str]]) -> None:
        before, ended = None, False
        while not ended:
            ended = self._ended.wait(0.0 if before is None else _POLL_S)
            if (names := pending()) != before:
                following = f"; loading and measuring {names[0]} ..." if names else ""
                say(f"Models: {total - len(names)} of {total} done{following}")
            before = names


def greeting(base: str, names: list[str], needs_key: bool, uds: str = "") -> str:
    """Return where the service is, and three commands to try.

    Args:
        base: The address at which users reach it.
        names: The models it serves.
        needs_key: Whether requests need a key; the commands then contain the variable that the SDK reads, too.
        uds: Path of the Unix socket, if that is the only way to reach it; there is one command then.
    """
    if uds:
        command = f"curl -s --unix-socket {shlex.quote(uds)} http://localhost/v1/models"
        return f"\nPathline is ready on the Unix socket {uds} (Ctrl-C stops it)\n\n  {command}\n"
    model = "moons" if "moons" in names else names[0]
    python = _PYTHON if Path(_PYTHON).exists() else "python"
    key = ' -H "Authorization: Bearer $PATHLINE_API_KEY"' if needs_key else ""
    export = "  export PATHLINE_API_KEY=...    # one of the keys; without it the answer is 401\n\n" if needs_key else ""
    return f"""
Pathline is ready on {base} (Ctrl-C stops it)

  Playground   {base}/
  HTTP API     {base}/docs
  Models       {", ".join(names)}

Three commands to try in another terminal:

{export}  curl -s {base}/v1/sample{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "num_samples": 4, "seed": 0, "solver": "rk4", "steps": 20}}'

  {python} -c 'from pathline import Client; print(Client("{base}").sample("{model}", num_samples=4, seed=0))'

  curl -s {base}/v1/solvers{key}
"""


class EscapingFormatter(logging.Formatter):
    """Escapes control characters in messages, and indents tracebacks.

    Messages may repeat client input, and a line break in it could begin what looks like another record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name in the standard library)
        """Return the first line."""
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the traceback, each line of it indented."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + _escaped(line) for line in lines)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class Writer:
    """Writes to the standard streams from a thread of its own, so that nobody waits for who does not read them.

    It bypasses Python's streams: one that is closed, full or ASCII must not stop the service either. While more than
    `_MAX_WAITING` messages wait, further ones are dropped, and their number is written later.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[int, str]] = queue.Queue(_MAX_WAITING)
        self._dropped = 0
        threading.Thread(target=self._run, name="pathline-writer", daemon=True).start()

    def put(self, descriptor: int, text: str) -> None:
        """Write a line soon."""
        try:
            self._waiting.put_nowait((descriptor, text))
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until everything is written, but not for long."""
        with self._waiting.all_tasks_done:
            self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, _FLUSH_S)

    def _run(self) -> None:
        while True:
            descriptor, text = self._waiting.get()
            if self._dropped:
                text, self._dropped = f"{text}\n({self._dropped} messages before this one were dropped)", 0
            stream = sys.stdout if descriptor == _OUT else sys.stderr
            content = f"{text}\n".encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
            with contextlib.suppress(OSError):
                while content:
                    content = content[os.write(descriptor, content) :]
            self._waiting.task_done()


_writer: Writer | None = None


def say(text: str, descriptor: int = _OUT) -> None:
    """Write a line to the standard output, whether or not somebody reads it."""
    global _writer
    if _writer is None:
        _writer = Writer()
    _writer.put(descriptor, text)


def flush() -> None:
    """Wait until what was said and logged is written, but not for long."""
    if _writer is not None:
        _writer.flush()


def open_closed_streams() -> None:
    """Open those of the standard streams that are closed: the next file or connection would take their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


class _SayHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), _ERR)


def log_to_stderr() -> None:
    """Log like the rest of the service."""
    handler = _SayHandler()
    handler.setFormatter(EscapingFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
