"""An engine that hangs or dies, in a real process: deadlines hold, /livez tells, and the process can be ended."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ..waiting import eventually
from .conftest import ROOT

_SICK = """
import sys, threading
from models.architectures.residual_mlp import ResidualMLP
from service.__main__ import main
from service.engine.arena import Arena

tick, how = Arena.tick, sys.argv.pop()

def sick(self, *arguments, **options):
    if how == "hang":
        threading.Event().wait()
    raise SystemExit("the thread ends")

Arena.tick = sick
sys.exit(main([]))
"""
BODY = {"model": "gaussian", "num_samples": 1, "timeout_s": 0.3}


@pytest.fixture
def sick(models: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts services whose engine hangs or dies at the first network call."""
    started = []

    def start(how: str, **settings: object) -> tuple[subprocess.Popen[str], str]:
        own = {"PATHLINE_MODELS_DIR": str(models), "PATHLINE_PORT": "0", "PATHLINE_THREADS": "1"}
        own |= {f"PATHLINE_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-c", _SICK, how]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")} | own
        running = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(running)
        assert running.stdout is not None
        for line in running.stdout:
            if found := re.search(r" on (http://[\d.]+:\d+)", line):
                return running, found.group(1)
        raise AssertionError("the service did not start")

    yield start
    for running in started:
        running.kill()
        running.wait()
        running.stdout.close()


def _status(url: str) -> int:
    return httpx.get(url, timeout=30).status_code


@pytest.mark.parametrize("on_timeout", ["error", "partial"])
def test_a_deadline_holds_where_the_engine_hangs(
    sick: Callable[..., tuple[subprocess.Popen[str], str]], on_timeout: str
) -> None:
    running, url = sick("hang", stall_s=60)
    body = {**BODY, "on_timeout": on_timeout}
    answer = httpx.post(f"{url}/v1/sample", json=body, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (504, "/problems/deadline-exceeded")
    stream = httpx.post(f"{url}/v1/sample/stream", json=body, timeout=60)
    assert "event: error" in stream.text
    assert "deadline-exceeded" in stream.text
    assert _status(f"{url}/livez") == 200
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{url}/v1/sample", json={**BODY, "timeout_s": 300}, timeout=60)
        assert eventually(lambda: _hangs(url))
        running.send_signal(signal.SIGTERM)
        assert eventually(lambda: _status(f"{url}/readyz") == 503)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM
        told = waiting.result()
        assert (told.status_code, told.json()["type"]) == (503, "/problems/draining")


def _said(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.read()


def _hangs(url: str) -> bool:
    return float(re.findall(r"^pathline_active_jobs (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)[0]) >= 3


def test_livez_tells_of_a_hang_and_the_process_ends(sick: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    running, url = sick("hang", stall_s=2)
    assert httpx.post(f"{url}/v1/sample", json=BODY, timeout=60).status_code == 504
    assert eventually(lambda: _status(f"{url}/livez") == 503)
    assert running.wait(60) == 1
    assert "a network call has not ended" in _said(running)


def test_one_signal_ends_a_service_that_hangs(sick: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    running, url = sick("hang", stall_s=60, drain_s=0.1)
    assert httpx.post(f"{url}/v1/sample", json=BODY, timeout=60).status_code == 504
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 1
    assert "does not stop its work" in _said(running)


def test_a_dead_engine_ends_the_process(sick: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    running, url = sick("die")
    answer = httpx.post(f"{url}/v1/sample", json={**BODY, "timeout_s": 60}, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/engine-failed")
    assert running.wait(60) == 1
    assert "the engine has stopped; the process ends" in _said(running)
