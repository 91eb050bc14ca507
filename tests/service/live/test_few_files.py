"""A process that may open few files: it says so, and refuses connections instead of resetting them."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from .conftest import ROOT

_FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from service.__main__ import main
sys.exit(main([]))
"""


def test_a_hundred_and_twenty_eight_files(models: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", _FEW],
        cwd=ROOT,
        env={"PATHLINE_MODELS_DIR": str(models), "PATHLINE_PORT": "0", "PATHLINE_THREADS": "1", "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    try:
        said = ""
        for line in running.stdout:
            said += line
            if found := re.search(r" on (http://([\d.]+):(\d+))", line):
                break
        else:
            raise AssertionError(said)
        assert "128 open files is too low for PATHLINE_MAX_CONNECTIONS=2000, so at most 48 connections are acc" in said
        held = [socket.create_connection((found[2], int(found[3])), 10) for _ in range(200)]
        assert httpx.get(f"{found[1]}/livez", timeout=30).status_code == 200
        closed = 0
        for raw in held[:150]:
            raw.settimeout(10)
            closed += raw.recv(100) == b""  # closed in order: a reset would raise
        assert closed == 150
        for raw in held:
            raw.close()
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
