"""The process: what it prints, how it answers over real sockets, and how it fails."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.__main__ import main
from service.metrics import REFUSALS
from service.settings import Settings

COMMAND = [sys.executable, "-m", "service"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(repository: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("PATHLINE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(repository))
    monkeypatch.setenv("PATHLINE_PORT", "0")
    monkeypatch.setenv("PATHLINE_MAX_CONNECTIONS", "20")
    monkeypatch.setenv("PATHLINE_DRAIN_S", "200")  # on a busy machine, running work takes a while
    return monkeypatch


@pytest.fixture
def process(environment: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[str]]]:
    """A running service, and its output until it was ready."""
    running = subprocess.Popen(COMMAND, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    lines: list[str] = []
    for line in running.stdout:
        lines.append(line)
        if "/v1/solvers" in line:
            break
    yield running, lines
    running.kill()
    running.wait()
    running.stdout.close()


def _base(lines: list[str]) -> str:
    found = re.search(r"http://[\d.]+:\d+", "".join(lines))
    assert found is not None, "".join(lines)
    return found.group()


def test_serves_over_sockets(process: tuple[Any, list[str]]) -> None:
    running, lines = process
    text, base = "".join(lines), _base(lines)
    assert "  PATHLINE_MAX_CONNECTIONS = 20\n" in text
    assert "PATHLINE_HOST" not in text  # it has its default
    assert "Models: 4 of 4 done\n" in text
    assert text.index(f"{base}/\n") < text.index(f"{base}/docs\n") < text.index("curl")
    assert "model broken version 1 is not served" in text
    assert "Traceback" not in text
    curl = re.search(r"-d '(\{.*\})'", text)
    assert curl is not None
    with httpx.Client(base_url=base) as http:
        answer = http.post("/v1/sample", content=curl.group(1), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["nfe"]) == (200, 80)
        assert http.get("/readyz").status_code == 200
        _large_body(base)
        _large_upload(base)
        _many_connections(base)
        assert http.get("/livez").status_code == 200
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 0
    assert "Traceback" not in running.stdout.read()


def test_the_commands_that_are_printed_work_with_a_key(
    environment: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    environment.setenv("PATHLINE_API_KEYS", "first-secret,second-secret\n")
    _, lines = request.getfixturevalue("process")
    text = "".join(lines)
    assert "secret" not in text
    assert "PATHLINE_API_KEYS = (hidden, 2)" in text
    commands = re.findall(r"^  (curl .*(?:\n    -d .*)?|\.venv.*)", text, re.MULTILINE)
    assert len(commands) == 3
    for key, right in (("second-secret", True), ("wrong", False)):
        for command in commands:
            assert _works(command, key) is right, command


def test_the_banner_shows_the_address_that_users_reach(
    environment: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    public = "https://lab.example/pathline"
    environment.setenv("PATHLINE_PUBLIC_URL", public)
    _, lines = request.getfixturevalue("process")
    banner = "".join(lines).partition("Pathline is ready")[2]
    ready, page, docs, *commands = re.findall(r"https?://[^\s'\"]+", banner)
    assert (ready, page, docs) == (public, f"{public}/", f"{public}/docs")
    assert len(commands) == 3
    assert all(address.startswith(public) for address in commands)


def _works(command: str, key: str) -> bool:
    """Run a printed command as a shell would."""
    if command.startswith(".venv"):
        environment = {**os.environ, "PATHLINE_API_KEY": key}
        words = [sys.executable, *shlex.split(command)[1:]]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True).returncode == 0
    words = shlex.split(command.replace("\\\n", "").replace("$PATHLINE_API_KEY", key))
    headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
    body = words[words.index("-d") + 1] if "-d" in words else None
    return httpx.request("POST" if body else "GET", words[2], headers=headers, content=body).status_code == 200


SLOW = {"model": "moons", "num_samples": 400, "solver": "euler", "steps": 4000, "seed": 1, "timeout_s": 300}


def test_sigterm_finishes_what_runs_and_refuses_the_rest(process: tuple[Any, list[str]]) -> None:
    running, lines = process
    base = _base(lines)
    with ThreadPoolExecutor(3) as pool, httpx.Client(base_url=base, timeout=60) as http:
        expected = http.post("/v1/sample", json={**SLOW, "steps": 10}).json()["nfe"]
        assert expected == 10
        accepted = [pool.submit(httpx.post, f"{base}/v1/sample", json=SLOW, timeout=300) for _ in range(3)]
        _until(lambda: "pathline_active_jobs 3.0" in http.get("/metrics").text)
        running.send_signal(signal.SIGTERM)
        _until(lambda: http.get("/readyz").status_code == 503)
        refused = http.post("/v1/sample", json=SLOW)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/draining")
        assert refused.headers["Retry-After"]
        assert http.get("/livez").status_code == 200
        assert [(each.result().status_code, each.result().json()["nfe"]) for each in accepted] == [(200, 4000)] * 3
    assert running.wait(60) == 0
    assert "Traceback" not in running.stdout.read()


def test_the_drain_time_ends_what_takes_longer(environment: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    environment.setenv("PATHLINE_DRAIN_S", "0.5")
    running, lines = request.getfixturevalue("process")
    base = _base(lines)
    with ThreadPoolExecutor(1) as pool:
        long = {**SLOW, "num_samples": 100_000, "steps": 10_000, "timeout_s": 300, "on_timeout": "partial"}
        answer = pool.submit(httpx.post, f"{base}/v1/sample", json=long, timeout=60)
        _until(lambda: "pathline_active_jobs 1.0" in httpx.get(f"{base}/metrics").text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0  # long before the request's own time limit
        assert (answer.result().status_code, answer.result().json()["type"]) == (503, "/problems/draining")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _large_body(base: str) -> None:
    """A body that is too large is answered before it is sent."""
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as raw:
        raw.sendall(
            b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


def _large_upload(base: str) -> None:
    """A client that sends all of a too large body before reading still gets the response, not a reset."""
    host, port = base.removeprefix("http://").split(":")
    size = 24 << 20
    with socket.create_connection((host, int(port)), 20) as raw:
        raw.sendall(
            b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % size
        )
        for _ in range(24):
            raw.sendall(b" " * (1 << 20))
        received = b""
        while part := raw.recv(4096):
            received += part
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"the limit is 16777216 (PATHLINE_MAX_BODY_BYTES)" in received


def _many_connections(base: str) -> None:
    """Idle connections are closed; if all are busy, health and metrics still answer and the rest is refused."""
    host, port = base.removeprefix("http://").split(":")
    before = _refused(base)
    held = [socket.create_connection((host, int(port)), 5) for _ in range(25)]
    try:
        for raw in held[:5]:
            raw.settimeout(5)
            assert raw.recv(4096) == b""
        assert httpx.get(f"{base}/v1/models").status_code == 200
        for raw in held[6:]:  # a complete head: the request is being answered, but its body never arrives
            raw.sendall(b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            raw.sendall(b"Content-Length: 10\r\n\r\n")
        held += [socket.create_connection((host, int(port)), 5)]
        held[-1].sendall(b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        held[-1].sendall(b"Content-Length: 10\r\n\r\n")
        _until(lambda: _status(base, "/v1/models") == 503)
        assert {_status(base, path) for path in ("/livez", "/readyz", "/metrics", "/v2/health/live")} == {200}
        refused = httpx.get(f"{base}/v1/models")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/too-many-connections")
        assert refused.headers["Retry-After"] == "1"
        counted = _refused(base)
        assert counted["idle"] - before["idle"] >= 5
        assert counted["too-many-connections"] >= 2
        assert set(counted) == set(REFUSALS)
    finally:
        for raw in held:
            raw.close()
    _until(lambda: _status(base, "/v1/models") == 200)


def _status(base: str, path: str) -> int:
    return httpx.get(base + path).status_code


def _refused(base: str) -> dict[str, float]:
    """Return the server's counts of refused connections, by reason."""
    pattern = r'^pathline_refused_connections_total\{reason="([a-z-]+)"\} (\S+)$'
    return {reason: float(n) for reason, n in re.findall(pattern, httpx.get(f"{base}/metrics").text, re.MULTILINE)}


def _run(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    assert "Traceback" not in message
    return code, message


def test_bad_setting(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_PORT", "abc")
    code, message = _run(environment, capsys)
    assert code == 2
    assert message.startswith("service: PATHLINE_PORT='abc' is not allowed; TCP port: an integer from 0")


@pytest.mark.parametrize("name", ["PATHLINE_API_KEYS", "PATHLINE_ADMIN_KEY"])
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_key(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, blank: str
) -> None:
    environment.setenv(name, blank)
    code, message = _run(environment, capsys)
    assert (code, message) == (2, f"service: {name} is set but blank; give it a key, or unset it to have none")


def test_missing_repository(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "none"))
    code, message = _run(environment, capsys)
    assert code == 1
    assert "does not exist" in message
    assert "make models" in message


def test_empty_repository(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path))
    code, message = _run(environment, capsys)
    assert code == 1
    assert "is empty; run `make models`" in message


def test_repository_of_damaged_models(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository / "broken", tmp_path / "broken")
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path))
    environment.setattr("service.server.freeze", lambda: None)  # this process continues
    assert main([]) == 1
    out, message = capsys.readouterr()
    assert "Pathline is ready" not in out
    assert message.strip().splitlines()[-1].startswith(f"service: no model in {tmp_path} can be loaded: broken/1: ")


def test_port_in_use(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        environment.setenv("PATHLINE_PORT", str(other.getsockname()[1]))
        code, message = _run(environment, capsys)
    assert code == 1
    assert "something else uses it" in message


def test_host_that_is_none(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    code, message = _run(environment, capsys)
    assert code == 1
    assert "PATHLINE_HOST='300.1.1.1' is not an address of this machine" in message


def test_unknown_variable_is_named(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_PROT", "1")
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    assert main([]) == 1
    assert "PATHLINE_PROT is set, but no setting has this name" in capsys.readouterr().err


def test_settings_are_printed(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    main([])
    assert Settings().changed()
    assert [line.strip() for line in capsys.readouterr().out.splitlines()][1:-1] == Settings().changed()
