"""A process that may open few files: it reports this, and refuses connections instead of resetting them."""

import socket
import sys
from pathlib import Path

import httpx

from tests.processes import environment, running

_FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from service.__main__ import main
sys.exit(main([]))
"""


def test_a_hundred_and_twenty_eight_files(models: Path) -> None:
    with running((sys.executable, "-c", _FEW), environment(models), forked=True) as service:
        message = service.log.read_text()
        assert (
            "128 open files is too low for PATHLINE_MAX_CONNECTIONS=2000, so at most 48 connections are acc" in message
        )
        port = int(service.url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(200)]
        assert httpx.get(f"{service.url}/livez", timeout=30).status_code == 200
        closed = 0
        for raw in held[:150]:
            raw.settimeout(10)
            closed += raw.recv(100) == b""  # closed properly: a reset would raise
        assert closed == 150
        for raw in held:
            raw.close()
