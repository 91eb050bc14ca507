"""The process: what it prints, how it answers over real sockets, and how it fails."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import stat
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
from service.server import listen
from service.settings import Settings, StartError, load_settings
from tests.processes import Forked, free_port

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
def process(environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Forked, Path]]:
    """A running service that is ready, and the file of its output."""
    log = tmp_path / "output.txt"
    log.touch()
    running = Forked(["-m", "service"], os.environ, log)
    _until(lambda: "/v1/solvers" in log.read_text() or running.poll() is not None)
    yield running, log
    running.kill()
    running.wait()


def test_a_start_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    # torch's compiler takes a second and 70 MB; it is imported by whatever torch cannot skip without it.
    code = f"""if True:
        import sys, pathlib, torch, service.app, service.server
        from models.architectures import analytic, residual_mlp
        from models.checkpoint.loading import load
        from models.checkpoint.saving import save
        from models.decoder import Decoder
        from models.forms.rows import work
        folder = pathlib.Path({str(tmp_path)!r})
        networks = analytic.Mixture(), residual_mlp.ResidualMLP(residual_mlp.ResidualMLPConfig(dim=2, hidden=8))
        for name, network in zip(("mixture", "mlp"), networks):
            save(folder, name, network, Decoder.identity((2,)), dataset={{}}, training={{}}, seed=0)
            checkpoint = load(folder / name / "1", "cpu")
            assert work(checkpoint.velocity, [torch.zeros(4, 2, dtype=checkpoint.dtype), torch.zeros(4)]) > 0
        print({{"opentelemetry.sdk", "torch._dynamo", "sympy", "sklearn", "pandas", "matplotlib"}} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def _base(log: Path) -> str:
    found = re.search(r"http://[\d.]+:\d+", log.read_text())
    assert found is not None, log.read_text()
    return found.group()


def test_serves_over_sockets(process: tuple[Forked, Path]) -> None:
    running, log = process
    text, base = log.read_text(), _base(log)
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
    assert "Traceback" not in log.read_text()


def test_the_commands_that_are_printed_work_with_a_key(
    environment: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    environment.setenv("PATHLINE_API_KEYS", "first-secret,second-secret\n")
    _, log = request.getfixturevalue("process")
    text = log.read_text()
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
    _, log = request.getfixturevalue("process")
    banner = log.read_text().partition("Pathline is ready")[2]
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


def test_sigterm_finishes_what_runs_and_refuses_the_rest(process: tuple[Forked, Path]) -> None:
    running, log = process
    base = _base(log)
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
    assert "Traceback" not in log.read_text()


def test_the_drain_time_ends_what_takes_longer(environment: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    environment.setenv("PATHLINE_DRAIN_S", "0.5")
    running, log = request.getfixturevalue("process")
    base = _base(log)
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


def _run(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    message = capfd.readouterr().err.strip()
    assert "\n" not in message
    assert "Traceback" not in message
    return code, message


def test_bad_setting(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_PORT", "abc")
    code, message = _run(environment, capfd)
    assert code == 2
    assert message.startswith("service: PATHLINE_PORT='abc' is not allowed; TCP port: an integer from 0")


@pytest.mark.parametrize("name", ["PATHLINE_API_KEYS", "PATHLINE_ADMIN_KEY"])
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_key(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, blank: str) -> None:
    environment.setenv(name, blank)
    code, message = _run(environment, capfd)
    assert (code, message) == (2, f"service: {name} is set but blank; give it a key, or unset it to have none")


def test_missing_repository(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "none"))
    code, message = _run(environment, capfd)
    assert code == 1
    assert "does not exist" in message
    assert "make models" in message


def test_empty_repository(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path))
    code, message = _run(environment, capfd)
    assert code == 1
    assert "is empty; run `make models`" in message


def test_repository_of_damaged_models(
    environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository / "broken", tmp_path / "broken")
    environment.setenv("PATHLINE_MODELS_DIR", str(tmp_path))
    environment.setattr("service.server.freeze", lambda: None)  # this process continues
    assert main([]) == 1
    out, message = capfd.readouterr()
    assert "Pathline is ready" not in out
    assert message.strip().splitlines()[-1].startswith(f"service: no model in {tmp_path} can be loaded: broken/1: ")


def test_port_in_use(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        environment.setenv("PATHLINE_PORT", str(other.getsockname()[1]))
        code, message = _run(environment, capfd)
    assert code == 1
    assert "something else uses it" in message


def test_host_that_is_none(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    code, message = _run(environment, capfd)
    assert code == 1
    assert "PATHLINE_HOST='300.1.1.1' is not an address of this machine" in message


def test_unknown_variable_is_named(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_PROT", "1")
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    assert main([]) == 1
    assert "PATHLINE_PROT is set, but no setting has this name" in capfd.readouterr().err


def test_settings_are_printed(environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    environment.setenv("PATHLINE_HOST", "300.1.1.1")
    main([])
    assert load_settings().changed()
    assert [line.strip() for line in capfd.readouterr().out.splitlines()][1:-1] == load_settings().changed()


@contextlib.contextmanager
def _ready(
    running: "subprocess.Popen[bytes]", family: int, address: Any, base: str = "http://localhost"
) -> Iterator[httpx.Client]:
    def listens() -> bool:
        assert running.poll() is None
        with socket.socket(family) as raw:
            return raw.connect_ex(address) == 0

    _until(listens)
    transport = httpx.HTTPTransport(uds=address if family == socket.AF_UNIX else None)
    with httpx.Client(transport=transport, base_url=base, timeout=60) as http:
        _until(lambda: http.get("/readyz").status_code == 200)
        yield http


def test_closed_streams_and_both_families_of_localhost(environment: pytest.MonkeyPatch) -> None:
    port = free_port()
    environment.setenv("PATHLINE_HOST", "localhost")
    environment.setenv("PATHLINE_PORT", str(port))
    close = "os.closerange(0, 3); signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    closed = [sys.executable, "-c", f"import os, signal, sys; {close}"]
    running = subprocess.Popen([*closed, *COMMAND], cwd=ROOT)
    try:
        for family, *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            host = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
            with _ready(running, family, address, f"http://{host}:{port}") as http:
                assert http.get("/livez").status_code == 200
        running.send_signal(signal.SIGHUP)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


def test_a_unix_socket_and_output_that_nobody_reads(
    environment: pytest.MonkeyPatch, tmp_path: Path, repository: Path
) -> None:
    path, models = tmp_path / "pathline.sock", os.fsencode(tmp_path) + b"/m\xff\xe9"
    shutil.copytree(repository, os.fsdecode(models))
    settings = {b"PATHLINE_UDS": os.fsencode(path), b"PATHLINE_MODELS_DIR": models, b"PATHLINE_ACCESS_LOG": b"true"}
    variables = dict(os.environb) | settings | {b"PYTHONIOENCODING": b"ascii", b"PATHLINE_WATCH_S": b"0.2"}
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)
    running = subprocess.Popen(COMMAND, cwd=ROOT, stdout=full, stderr=full, env=variables)
    try:
        with _ready(running, socket.AF_UNIX, str(path)) as http:
            for _ in range(1_500):  # more lines than wait for a reader
                assert http.get("/livez").status_code == 200
            assert stat.filemode(path.stat().st_mode) == "srw-rw----"
            with pytest.raises(StartError, match="another service listens there"):
                listen(Settings(uds=str(path)))
            shutil.copytree(repository / "moons", Path(os.fsdecode(models)) / "suns")
            _until(lambda: http.get("/v1/models/suns").status_code == 200)  # the watch goes on
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        assert not path.exists()
    finally:
        running.kill()
        running.wait()
        os.close(full)
        os.close(unread)


def test_a_path_that_is_no_unix_socket_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(StartError, match="something that is no socket is there"):
        listen(Settings(uds=str(tmp_path / "notes")))
    left = listen(Settings(uds=str(tmp_path / "left")))
    left[0].close()  # as a killed service leaves it
    [bound] = listen(Settings(uds=str(tmp_path / "left")))
    bound.close()
    assert (tmp_path / "notes").read_text() == "mine"


def test_all_of_ipv6_takes_ipv4_too() -> None:
    [bound] = listen(Settings(host="::", port=0))
    _takes_both_families(bound)


def test_a_host_name_with_several_addresses_is_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own, foreign = [("127.0.0.1", 0), ("::1", 0, 0, 0)], [("192.0.2.1", 0)]  # the last one is of no machine

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET6 if ":" in a[0] else socket.AF_INET, 1, 6, "", a) for a in (*own, *foreign, *own)]

    monkeypatch.setattr("service.server.socket.getaddrinfo", resolve)
    bound = listen(Settings(host="lab", port=0))
    assert len({each.getsockname()[1] for each in bound}) == 1
    bound[0].listen()
    with pytest.raises(StartError, match="something else uses it"):
        listen(Settings(host="lab", port=bound[0].getsockname()[1]))
    _takes_both_families(*bound)
    own.clear()
    with pytest.raises(StartError, match="not an address of this machine"):
        listen(Settings(host="lab", port=0))


def _takes_both_families(*bound: socket.socket) -> None:
    port = bound[0].getsockname()[1]
    for each in bound:
        each.listen()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as client:
            client.connect((host, port))
    for each in bound:
        each.close()
