"""Debian's nginx with deploy/nginx/pathline.conf in front of two real replicas, one of which is killed or full."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pathline import Client

from tests.processes import ROOT, Process, free_port
from tests.service.serving import serving
from tests.system.support import ENDLESS, sent, until

pytestmark = pytest.mark.system

CONF = ROOT / "deploy" / "nginx" / "pathline.conf"
LONG = {"model": "moons", "num_samples": 2000, "solver": "rk4-2000", "timeout_s": 600}
LONG_ENOUGH = LONG | {"solver": "rk4-1000"}  # to be found running

Replica = tuple[str, Process]


@contextmanager
def balanced(folder: Path, replicas: list[str], lines: str = 'proxy_set_header Connection "";') -> Iterator[str]:
    """Run nginx in front of replicas, with these lines about connections to them; yield its address."""
    port = free_port()
    servers = "\n".join(f"    server {url.removeprefix('http://')} max_fails=0;" for url in replicas)
    conf = CONF.read_text().replace("    server replica:8000 max_fails=0;", servers)
    assert 'proxy_set_header Connection "";' in conf
    conf = conf.replace('proxy_set_header Connection "";', lines)
    conf = conf.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    assert conf.count("max_fails=0;\n") >= len(replicas)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{ access_log off; {paths}\n{conf}\n}}\n"
    )
    running = subprocess.Popen(["/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        until("nginx", lambda: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(10)


@contextmanager
def two(repository: Path) -> Iterator[list[Replica]]:
    with ExitStack() as started:
        yield [started.enter_context(serving(repository, max_queue="4", drain_s="300")) for _ in range(2)]


@pytest.fixture(scope="module")
def lasting(repository: Path) -> Iterator[list[Replica]]:
    with two(repository) as replicas:
        yield replicas


@pytest.fixture
def replicas(lasting: list[Replica]) -> list[Replica]:
    """Return two replicas that other tests use too, once they have nothing to do."""
    until("no job", lambda: not any(jobs(url) for url, _ in lasting))
    return lasting


@pytest.fixture
def url(replicas: list[Replica], tmp_path: Path) -> Iterator[str]:
    with balanced(tmp_path, [url for url, _ in replicas]) as found:
        yield found


@pytest.fixture
def mortal(repository: Path, tmp_path: Path) -> Iterator[tuple[list[Replica], str]]:
    """Yield two replicas that a test may end, and the address of nginx in front of them."""
    with two(repository) as replicas, balanced(tmp_path, [url for url, _ in replicas]) as url:
        yield replicas, url


def jobs(url: str) -> int:
    return httpx.get(f"{url}/v1/load").json()["jobs"]


def npy(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/sample", json=body, headers={"Accept": "application/x-npy"}, timeout=660)


UPGRADING = 'proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";'
"""The lines that people copy for websockets."""


def test_an_upgrade_through_nginx_loses_no_body_and_hides_no_request(repository: Path, tmp_path: Path) -> None:
    body = b'{"model": "moons", "num_samples": 1, "seed": 3, "solver": "euler-2"}'
    kind = {"Accept": "application/x-npy", "Content-Type": "application/json"}
    hidden = b"GET /v1/load HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(repository) as (replica, _), balanced(tmp_path, [replica], UPGRADING) as url:
        plain = httpx.post(f"{url}/v1/sample", content=body, headers=kind)
        assert plain.status_code == 200
        for token in ("h2c", "websocket", "TLS/1.2", "unheard-of/9"):
            headers = kind | {"Upgrade": token, "Connection": "Upgrade"}
            with httpx.Client(base_url=url) as client:
                for _ in range(3):  # on one connection to the replica
                    answer = client.post("/v1/sample", content=body, headers=headers)
                    assert (answer.status_code, answer.content) == (200, plain.content)
                    refused = client.post("/v1/sample", content=hidden, headers=headers)
                    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/malformed-json")
                    assert client.get("/v1/load", headers=headers).status_code == 404
                    assert client.get("/livez", headers=headers).json() == {"status": "alive"}
        lines = httpx.get(f"{replica}/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("pathline_requests_total{") and not line.endswith(" 0.0")]
        assert any("/v1/sample" in line for line in counted)
        assert not any("/v1/load" in line for line in counted)


def test_a_replica_that_is_killed_costs_no_request(mortal: tuple[list[Replica], str]) -> None:
    replicas, url = mortal
    bodies = [LONG_ENOUGH | {"seed": seed} for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(npy, url, **body) for body in bodies]
        until("four running requests", lambda: sum(jobs(each) for each, _ in replicas) == 4)
        assert [jobs(each) for each, _ in replicas] == [2, 2]
        replicas[0][1].send_signal(signal.SIGKILL)
        found = [answer.result() for answer in answers]
    assert [answer.status_code for answer in found] == [200] * 4
    alone = replicas[1][0]
    assert [answer.content for answer in found] == [npy(alone, **body).content for body in bodies]


def test_a_replica_that_drains_is_passed_over_and_finishes_its_job(mortal: tuple[list[Replica], str]) -> None:
    ((draining, process), (other, _)), url = mortal
    body = {"model": "moons", "num_samples": 8, "solver": "rk4-4", "seed": 1, "timeout_s": 60}
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(npy, draining, **LONG | {"seed": 0})
        until("a job", lambda: jobs(draining) == 1)
        process.send_signal(signal.SIGTERM)
        until("503", lambda: npy(draining, **body).status_code == 503)
        found = [npy(url, **body) for _ in range(4)]
        assert not last.done()  # the replica was draining all the while
        assert npy(draining, **body).json()["type"] == "/problems/draining"
        assert [answer.status_code for answer in found] == [200] * 4
        assert {answer.content for answer in found} == {npy(other, **body).content}
        assert last.result().content == npy(other, **LONG | {"seed": 0}).content
    assert process.wait(60) == 0


def fill(url: str, stop: threading.Event) -> list[threading.Thread]:
    """Keep a replica's queue full until stopped."""

    def hold() -> None:
        body = {"model": "moons", "num_samples": 1, "solver": "euler-10000", "timeout_s": 600, "priority": "bulk"}
        with httpx.Client(timeout=600) as client:
            while not stop.is_set():
                with client.stream("POST", f"{url}/v1/sample/stream", json=body | {"num_samples": 4000}) as stream:
                    for _ in stream.iter_lines():
                        if stop.is_set():
                            break

    threads = [threading.Thread(target=hold, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    until("a full queue", lambda: jobs(url) == 4)
    return threads


def test_one_that_is_full_is_passed_over_and_all_full_is_429_with_retry_after(
    replicas: list[Replica], url: str
) -> None:
    stop, body = threading.Event(), {"model": "moons", "num_samples": 8, "solver": "rk4-4", "seed": 1, "timeout_s": 60}
    threads = fill(replicas[0][0], stop)
    assert npy(replicas[0][0], **body).status_code == 429
    found = {npy(url, **body).content for _ in range(4)}
    assert found == {npy(replicas[1][0], **body).content}
    threads += fill(replicas[1][0], stop)
    refused = npy(url, **body)
    assert refused.status_code == 429
    assert refused.json()["type"] == "/problems/overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    stop.set()
    for thread in threads:
        thread.join(60)
    with Client(url) as client:
        assert client.sample("moons", num_samples=8, solver="rk4-4").samples.shape == (8, 2)


def test_streams_arrive_as_they_are_sent_and_a_path_is_stripped(replicas: list[Replica], url: str) -> None:
    for base in (url, f"{url}/pathline"):
        with httpx.stream("POST", f"{base}/v1/sample/stream", json=LONG_ENOUGH | {"seed": 0}, timeout=600) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("event:"))
            assert next(lines) == "event: start"
            assert sum(jobs(each) for each, _ in replicas) == 1  # it arrives while the samples are being drawn
            *_, last = lines
        assert last == "event: completed"
    assert httpx.get(f"{url}/pathline/docs").status_code == 200


def test_a_client_that_leaves_is_seen_by_the_replica(replicas: list[Replica], url: str) -> None:
    with sent(url, model="moons", **ENDLESS):
        until("a job", lambda: sum(jobs(each) for each, _ in replicas) == 1)
    until("no job", lambda: sum(jobs(each) for each, _ in replicas) == 0, 15)


def test_what_belongs_to_one_replica_is_not_balanced(url: str) -> None:
    assert httpx.get(f"{url}/metrics").status_code == 404
    assert httpx.get(f"{url}/v1/load").status_code == 404
    answer = httpx.get(f"{url}/v1/models", headers={"X-Request-ID": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]
