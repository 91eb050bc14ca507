"""An engine that hangs or dies, in a real process: deadlines are kept, /livez fails, and the process can be stopped."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.processes import Running, environment, running

from ..waiting import eventually

_SICK = """
import sys, threading
from models.architectures.residual_mlp import ResidualMLP
from service import server
from service.__main__ import main
from service.requests import pipeline
from engine.arena import Arena

pipeline.LATE_S = server._LET_GO_S = 0.5  # in place of seconds that the tests would wait
tick, how = Arena.tick, sys.argv.pop()

def sick(self, *arguments, **options):
    if how == "hang":
        threading.Event().wait()
    raise SystemExit("the thread ends")

Arena.tick = sick
sys.exit(main([]))
"""
BODY = {"model": "gaussian", "num_samples": 1, "timeout_s": 0.3}

Start = Callable[..., Running]


@pytest.fixture
def sick(models: Path) -> Iterator[Start]:
    """Start services with an engine that hangs or dies at the first network call."""
    with ExitStack() as started:

        def start(how: str, **settings: object) -> Running:
            command = (sys.executable, "-c", _SICK, how)
            return started.enter_context(running(command, environment(models, **settings), forked=True))

        yield start


def _status(url: str) -> int:
    return httpx.get(url, timeout=30).status_code


@pytest.mark.parametrize("on_timeout", ["error", "partial"])
def test_a_deadline_holds_where_the_engine_hangs(sick: Start, on_timeout: str) -> None:
    service = sick("hang", stall_s=60)
    url = service.url
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
        service.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: _status(f"{url}/readyz") == 503)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 128 + signal.SIGTERM
        response = waiting.result()
        assert (response.status_code, response.json()["type"]) == (503, "/problems/draining")


def _hangs(url: str) -> bool:
    return float(re.findall(r"^pathline_active_jobs (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)[0]) >= 3


def test_livez_tells_of_a_hang_and_the_process_ends(sick: Start) -> None:
    service = sick("hang", stall_s=2)
    assert httpx.post(f"{service.url}/v1/sample", json=BODY, timeout=60).status_code == 504
    assert eventually(lambda: _status(f"{service.url}/livez") == 503)
    assert service.process.wait(60) == 1
    assert "a network call has not ended" in service.log.read_text()


def test_one_signal_ends_a_service_that_hangs(sick: Start) -> None:
    service = sick("hang", stall_s=60, drain_s=0.1)
    assert httpx.post(f"{service.url}/v1/sample", json=BODY, timeout=60).status_code == 504
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 1
    assert "does not stop its work" in service.log.read_text()


def test_a_dead_engine_ends_the_process(sick: Start) -> None:
    service = sick("die")
    answer = httpx.post(f"{service.url}/v1/sample", json={**BODY, "timeout_s": 60}, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/engine-failed")
    assert service.process.wait(60) == 1
    assert "the engine has stopped; the process ends" in service.log.read_text()
