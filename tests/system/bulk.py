"""Bulk jobs of the system tests: `python -m fleet` with its extras, and in this process.

Ray and the stores' clients have their own environment, which `make test-system` creates.
"""

import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from fleet.__main__ import main
from tests.processes import ROOT, start

PYTHON = ROOT / ".venv" / "fleet" / "bin" / "python"
JOB = ("moons", "--seed", "5", "--total", str(64 * 40), "--solver", "rk4-2000", "--shard-rows", "64")


def begin(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    return start([str(PYTHON), "-m", "fleet", *arguments, "--quiet"], environment)


def fleet(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Run a command to its end and return its output."""
    running = begin(environment, *arguments)
    out, err = running.communicate(timeout=600)
    assert running.returncode == code, out + err
    return out if code == 0 else err


def printed(out: str) -> str:
    return out.split("fingerprint ")[-1].strip()


def here(environment: dict[str, str], *arguments: str) -> str:
    """Run a command in this process, which spares its start, and return the fingerprint that it prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setenv("PATHLINE_MODELS_DIR", environment["PATHLINE_MODELS_DIR"])
        patch.setenv("JOB_COMPLETION_INDEX", "0")
        one_worker = ("--on", "indexed") if arguments[0] == "sample" else ()
        assert main([*arguments, *one_worker, "--quiet"]) == 0
    return printed(out.getvalue())


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """Return the children of all threads of a process."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(number) for children in threads for number in children.read_text().split()]
