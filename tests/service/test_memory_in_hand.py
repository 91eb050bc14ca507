"""Memory of requests on every route: bounded, refused with 413 or 429, and returned however a request ends."""

import asyncio
import gc
import json
import re
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from engine.job import Draining, EngineFailed, JobResult, Overloaded, TooLate
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.app import create_app
from service.http.context import Context
from service.ledger import Hold, Ledger
from service.requests.parsing import LARGE_BODY
from service.settings import Settings
from tests.service.conftest import Running
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

SOLVER = {"solver": "rk4", "steps": 4}
ROWS = [[0.5, 0.25]] * 1_000
TENSOR = {"name": "x0", "shape": [1_000, 2], "datatype": "FP32", "data": [0.5] * 2_000}

DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "sample": ("/v1/sample", {"model": "moons", "num_samples": 1_000, **SOLVER}),
    "stream": ("/v1/sample/stream", {"model": "moons", "num_samples": 1_000, "save_at": [0.5, 1.0], **SOLVER}),
    "encode": ("/v1/models/moons/encode", {"samples": ROWS, **SOLVER}),
    "log_prob": ("/v1/models/moons/log_prob", {"samples": ROWS, "divergence": "hutchinson", "probes": 3, **SOLVER}),
    "diagnose": ("/v1/models/moons/diagnose", {"num_samples": 100, "times": [0.0, 1.0]}),
    "infer": ("/v2/models/moons/infer", {"parameters": SOLVER, "inputs": [TENSOR]}),
}
FRONTIER = {"frontier": ("/v1/models/moons/frontier", {"solvers": ["rk4-4", "rk4-8"], "num_samples": 100})}
FAILURES = [TooLate(), EngineFailed("broken"), Draining(), RuntimeError("unheard of")]


@pytest.fixture
def running(shared: Running) -> Running:
    """The shared service, with nothing in hand."""
    shared.service.ledger, shared.service.bodies = Ledger(10**9), Ledger(10**9)
    return shared


def limit(running: Any, wanted: int) -> Ledger:
    running.service.ledger = Ledger(wanted)
    return running.service.ledger


@pytest.mark.parametrize("door", DOORS)
async def test_more_than_there_ever_is(running: Any, door: str) -> None:
    ledger = limit(running, 9_999)
    path, body = DOORS[door]
    answer = await running.http.post(path, json=body)
    assert answer.status_code == 413
    if door == "infer":
        assert "PATHLINE_MAX_JOB_BYTES" in answer.json()["error"]
    else:
        assert answer.json()["type"] == "/problems/job-too-large"
        assert answer.json()["limit_bytes"] == 9_999 < answer.json()["needed_bytes"]
    assert (running.engine.jobs, ledger.reserved) == ([], 0)


@pytest.mark.parametrize("door", DOORS)
async def test_more_than_there_is_now(running: Any, door: str) -> None:
    ledger = limit(running, 10**8)
    other = ledger.take(10**8, 1e12)
    path, body = DOORS[door]
    answer = await running.http.post(path, json=body)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert (running.engine.jobs, ledger.reserved) == ([], 10**8)
    other.release()
    assert (await running.http.post(path, json=body)).status_code == 200
    assert ledger.reserved == 0


async def test_the_gauge_says_what_is_in_hand(running: Any) -> None:
    hold = running.service.ledger.take(12_345, 1e12)
    assert "pathline_job_bytes 12345.0" in (await running.http.get("/metrics")).text
    hold.release()
    assert "pathline_job_bytes 0.0" in (await running.http.get("/metrics")).text


@pytest.mark.parametrize("door", ["sample", "stream", "encode", "log_prob", "infer"])
@pytest.mark.parametrize("fail", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_job_that_fails(running: Any, door: str, fail: Exception) -> None:
    running.engine.fail = fail
    path, body = DOORS[door]
    if door == "stream" and isinstance(fail, RuntimeError):
        with pytest.raises(RuntimeError):
            await running.http.post(path, json=body)
    else:
        await running.http.post(path, json=body)
    assert len(running.engine.jobs) == 1
    assert running.service.ledger.reserved == 0


@pytest.mark.parametrize("door", ["sample", "stream", "encode", "log_prob", "infer"])
async def test_a_job_that_the_engine_refuses(running: Any, door: str) -> None:
    running.engine.refuse = Overloaded("the queue is full", 2.0)
    path, body = DOORS[door]
    assert (await running.http.post(path, json=body)).status_code == 429
    assert running.service.ledger.reserved == 0


async def leave(running: Any, path: str, body: dict[str, Any], when: Callable[[], bool]) -> None:
    """Send a request with a client that leaves as soon as `when` is true."""
    content, sent = json.dumps(body).encode(), False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}
        while not when():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "root_path": "", "scheme": "http"}
    await asyncio.wait_for(running.http._transport.app(scope | {"http_version": "1.1"}, receive, send), 30)


@pytest.mark.parametrize("door", ["sample", "stream", "encode", "log_prob", "infer"])
async def test_a_client_that_leaves_counts_until_the_engine_has_let_go(running: Any, door: str) -> None:
    running.engine.hold = True
    await leave(running, *DOORS[door], when=lambda: bool(running.engine.submitted))
    [future] = running.engine.submitted
    assert running.engine.cancelled == [future]
    assert running.service.ledger.reserved > 8_000
    future.cancel()
    await asyncio.sleep(0)
    assert running.service.ledger.reserved == 0


async def test_an_answer_counts_until_it_is_out(running: Any) -> None:
    """Also if the client reads slowly: the engine has finished the job, but the result is still in memory."""
    ledger, seen = running.service.ledger, []
    path, body = DOORS["sample"]
    content = json.dumps(body | {"num_samples": 50_000}).encode()
    wait = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not seen:
            seen.append(0)
            return {"type": "http.request", "body": content, "more_body": False}
        await wait.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert running.engine.submitted[0].done()
        seen.append(ledger.reserved)

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "root_path": "", "scheme": "http"}
    await asyncio.wait_for(running.http._transport.app(scope | {"http_version": "1.1"}, receive, send), 30)
    assert len(seen) > 4
    assert min(seen[1:]) > 50_000 * 8
    assert ledger.reserved == 0


def test_memory_that_is_set_aside_too_late_goes_back_at_once() -> None:
    ledger = Ledger(100)
    service = SimpleNamespace(reserve=lambda size, deadline, conditions: ledger.take(size, deadline))
    context = Context({"type": "http", "headers": []}, service=service)
    context.end()
    assert context.reserve(60).bytes == 60
    assert ledger.reserved == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4))
    save(root, "net", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


@pytest.fixture
async def real(root: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Ledger]]:
    settings = Settings(models_dir=root, device="cpu", threads=1, watch_s=0, timeout_s=300, max_job_bytes=40_000_000)
    app = create_app(settings)
    async with calling(app) as http:
        yield http, app.state.service.ledger


async def test_sixteen_small_requests_for_much(real: tuple[httpx.AsyncClient, Ledger]) -> None:
    """Each saves 31 states of 10,000 samples: 2.5 MB, and 12 MB on the way; two fit, and the others are to retry."""
    http, ledger = real
    body = {"model": "net", "num_samples": 10_000, "solver": "euler", "steps": 30, "trace": "none"}
    body |= {"save_at": [k / 30 for k in range(31)]}
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, ledger.reserved)
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    answers = await asyncio.gather(*(http.post("/v1/sample", json=body) for _ in range(16)))
    watching.cancel()
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    assert statuses[0] == 200
    assert 2_600_000 < most <= 40_000_000
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
    assert ledger.reserved == 0
    assert (await http.post("/v1/sample", json=body | {"num_samples": 100_000})).status_code == 413
    assert (await http.post("/v1/sample", json=body)).status_code == 200


async def test_every_end_with_a_real_engine(real: tuple[httpx.AsyncClient, Ledger]) -> None:
    http, ledger = real
    for path, body in (
        ("/v1/models/net/encode", {"samples": ROWS}),
        ("/v1/models/net/log_prob", {"samples": ROWS}),
        ("/v1/models/net/diagnose", {"num_samples": 5, "times": [0.0, 1.0]}),
        ("/v1/sample", {"model": "net", "num_samples": 500, "trace": "full", "max_nfe": 600}),
    ):
        assert (await http.post(path, json=body)).status_code == 200
        assert ledger.reserved == 0
    long = {"model": "net", "num_samples": 9_000, "solver": "euler", "steps": 9_000, "timeout_s": 0.05, "trace": "none"}
    assert (await http.post("/v1/sample", json=long)).status_code == 422  # too slow even when alone
    unknown = {"model": "net", "num_samples": 9_000, "solver": "bosh3", "rtol": 1e-7, "atol": 1e-7, "timeout_s": 0.05}
    assert (await http.post("/v1/sample", json=unknown)).status_code in (429, 504)
    partial = await http.post("/v1/sample", json=long | {"on_timeout": "partial", "save_at": [0.0, 1.0]})
    assert partial.status_code in (200, 429)
    stream = await http.post("/v1/sample/stream", json=unknown | {"save_at": [1.0]})
    assert stream.status_code in (200, 429)
    assert re.search("deadline-exceeded|overloaded", stream.text)
    for _ in range(600):
        if not ledger.reserved:
            break
        await asyncio.sleep(0.05)
    assert ledger.reserved == 0


@pytest.mark.parametrize("door", DOORS)
async def test_a_large_body_is_given_back_once_it_is_understood(running: Any, door: str) -> None:
    taken: list[int] = []

    class Watched(Ledger):
        def take(self, size: int, deadline: float) -> Hold:
            taken.append(size)
            return super().take(size, deadline)

    running.service.bodies = Watched(2**30)
    path, body = DOORS[door]
    for content in (json.dumps(body) + " " * LARGE_BODY, json.dumps(body | {"zz": "a" * LARGE_BODY})):
        pending = asyncio.create_task(
            running.http.post(path, content=content, headers={"Content-Type": "application/json"})
        )
        while not taken or (running.service.bodies.reserved and not pending.done()):
            await asyncio.sleep(0.001)
        assert running.service.bodies.reserved == 0
        assert taken.pop() > LARGE_BODY
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


@pytest.mark.parametrize("door", [*DOORS, "frontier"])
async def test_a_result_leaves_memory_with_its_request_not_with_the_next_collection_of_cycles(
    running: Any, door: str
) -> None:
    results: list[weakref.ref[JobResult]] = []

    def noted(result: JobResult) -> JobResult:
        results.append(weakref.ref(result))
        return result

    running.engine.edit = noted
    path, body = (DOORS | FRONTIER)[door]
    gc.collect()
    gc.disable()
    try:
        assert (await running.http.post(path, json=body)).status_code == 200
        running.engine.jobs.clear()
        running.engine.submitted.clear()
        for _ in range(500):  # a worker thread may still be leaving the function that had it
            await asyncio.sleep(0.01)
            if not any(result() for result in results):
                break
        assert results
        assert not any(result() for result in results)
    finally:
        gc.enable()
