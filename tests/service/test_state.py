"""Loading has a thread of its own: it keeps to deadlines, is bounded, and leaves the threads of answers alone."""

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.repository import RepositoryError
from service import state
from service.app import create_app
from service.errors import Kind, ProblemError
from service.registry.registry import Models
from service.settings import Settings
from service.state import Service
from tests.service.waiting import eventually

pytestmark = pytest.mark.anyio

OLD = 40


class Gate:
    """Loading stops here until it is opened; `threads` are the names of those that came."""

    def __init__(self, engine: Any) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.loaded: list[tuple[str, int]] = []
        self.threads: set[str] = set()
        self._load = engine.load
        engine.load = self

    def __call__(self, name: str, version: int, checkpoint: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        self.loaded.append((name, version))
        self.entered.release()
        assert self.open.wait(60)
        return self._load(name, version, checkpoint)


@pytest.fixture
def settings(repository: Path, tmp_path: Path) -> Settings:
    """moons with many versions."""
    for number in range(1, OLD + 1):
        shutil.copytree(repository / "moons" / "1", tmp_path / "moons" / str(number))
    return Settings(models_dir=tmp_path, watch_s=0, max_old_versions=3)


@pytest.fixture
def gate(running: Any) -> Iterator[Gate]:
    made = Gate(running.engine)
    yield made
    made.open.set()


FIXED = {"num_samples": 1, "seed": 0, "solver": "rk4", "steps": 2}


async def test_a_load_keeps_to_the_deadline_and_takes_no_thread_of_answers(running: Any, gate: Gate) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, "answers"))
    asked = [running.post(**FIXED, version=number, timeout_s=0.2) for number in range(1, OLD)]
    asked += [running.post(**FIXED, version=1, timeout_s=0.2) for _ in range(20)]
    metrics = running.http.get("/metrics")
    *answers, counted, model = await asyncio.gather(*asked, metrics, running.post(**FIXED))
    assert {(answer.status_code, answer.json()["type"]) for answer in answers} == {(504, "/problems/deadline-exceeded")}
    assert "was still loading" in answers[0].json()["detail"]
    assert counted.status_code == model.status_code == 200
    assert len(gate.loaded) == 1  # the others were given up before their turn
    assert {name.rpartition("_")[0] for name in gate.threads} == {"pathline-loading"}
    assert running.service._loading == {}
    gate.open.set()
    assert (await running.post(**FIXED, version=gate.loaded[0][1])).status_code == 200
    assert len(gate.loaded) == 1  # it went on when nobody waited


async def test_the_time_limit_of_a_job_includes_its_loading(running: Any, gate: Gate) -> None:
    before = time.monotonic()
    answer = asyncio.ensure_future(running.post(**FIXED, version=1, timeout_s=100))
    await asyncio.to_thread(gate.entered.acquire)
    entered = time.monotonic()
    gate.open.set()
    assert (await answer).status_code == 200
    assert before + 100 <= running.engine.jobs[-1].deadline <= entered + 100


async def test_one_load_for_all_who_wait(running: Any, gate: Gate) -> None:
    asked = [asyncio.ensure_future(running.post(**FIXED, version=1)) for _ in range(30)]
    await asyncio.to_thread(gate.entered.acquire)
    asyncio.get_running_loop().call_later(0.05, gate.open.set)
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    assert gate.loaded == [("moons", 1)]


async def test_too_many_loads_are_refused(running: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_LOADS", 3)
    asked = [asyncio.ensure_future(running.post(**FIXED, version=number, timeout_s=60)) for number in range(1, 4)]
    await asyncio.to_thread(gate.entered.acquire)
    refused = await running.post(**FIXED, version=4)
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/overloaded")
    assert int(refused.headers["Retry-After"]) >= 1
    assert "3 model versions are already waiting to be loaded" in refused.json()["detail"]
    gate.open.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_the_protocol_and_the_operations_keep_to_it_too(running: Any, gate: Gate) -> None:
    encode = {"samples": [[0, 0]], "solver": "rk4", "steps": 2, "timeout_s": 0.1, "version": 1}
    infer = {"parameters": {**FIXED, "timeout_s": 0.1}}
    answers = await asyncio.gather(
        running.http.post("/v1/models/moons/encode", json=encode),
        running.http.post("/v2/models/moons/versions/2/infer", json=infer),
        running.http.post("/v1/sample/stream", json={"model": "moons", "version": 3, **FIXED, "timeout_s": 0.1}),
    )
    assert [answer.status_code for answer in answers] == [504] * 3


async def test_shutdown_answers_who_waits_for_a_load(running: Any, gate: Gate) -> None:
    asked = [asyncio.ensure_future(running.post(**FIXED, version=number)) for number in (1, 2)]
    await asyncio.to_thread(gate.entered.acquire)
    running.service.models.close()
    assert (await asked[1]).json()["type"] == "/problems/draining"
    gate.open.set()
    assert (await asked[0]).status_code == 200
    assert (await running.post(**FIXED, version=3)).json()["type"] == "/problems/draining"


async def test_old_versions_do_not_fill_memory(running: Any) -> None:
    for number in range(1, OLD):
        assert (await running.post(**FIXED, version=number)).status_code == 200
    kept = {arena.version for arena in running.engine.arenas}
    assert kept == {OLD, OLD - 1, OLD - 2, OLD - 3}
    text = (await running.http.get("/metrics")).text
    assert text.count("pathline_model_loaded{") == 4
    assert (await running.post(**FIXED, version=OLD - 3)).status_code == 200  # used again, so it is not the next to go
    assert (await running.post(**FIXED, version=1)).status_code == 200
    assert {arena.version for arena in running.engine.arenas} == {OLD, OLD - 1, OLD - 3, 1}


async def test_at_once_too(running: Any) -> None:
    most = 0

    def load(*what: Any) -> Any:
        nonlocal most
        most = max(most, len(running.engine.arenas))
        return real(*what)

    real, running.engine.load = running.engine.load, load
    answers = await asyncio.gather(*(running.post(**FIXED, version=number) for number in range(1, OLD)))
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert {answer.headers["Retry-After"] for answer in answers if answer.status_code == 429} <= {"1"}
    assert sum(answer.status_code == 200 for answer in answers) >= 3
    assert most <= 3  # before one more is loaded: the current one and two old ones
    assert (await running.post(**FIXED)).json()["version"] == OLD


def test_versions_that_requests_hold_are_not_unloaded_for_others(settings: Settings, engine: Any) -> None:
    models = Models(settings.models_dir, engine, max_old=3)
    models.load_all()
    held = [models.find("moons", number) for number in (1, 2, 3)]
    with pytest.raises(ProblemError, match="3 older versions are in use, the limit is 3") as caught:
        models.find("moons", 4)
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.headers["Retry-After"] == "1"
    assert models.broken() == {}
    assert [models.get("moons", each.version) for each in held] == held  # still there for others
    assert models.find("moons").version == OLD
    del held[1]
    assert models.find("moons", 4).version == 4
    assert {arena.version for arena in engine.arenas} == {1, 3, 4, OLD}


def test_an_unloaded_version_that_is_held_is_not_loaded_twice(settings: Settings, engine: Any) -> None:
    models = Models(settings.models_dir, engine)
    models.load_all()
    held = models.find("moons")
    models.unload("moons")
    assert models.find("moons") is held
    assert len(engine.arenas) == 1


# Start.


@pytest.fixture
def many(repository: Path, tmp_path: Path) -> Settings:
    for name in ("a", "b", "c", "d"):
        shutil.copytree(repository / "moons" / "1", tmp_path / "many" / name / "1")
    shutil.copytree(repository / "broken", tmp_path / "many" / "broken")
    return Settings(models_dir=tmp_path / "many", watch_s=0)


async def test_the_service_answers_while_models_are_loaded(many: Settings, engine: Any) -> None:
    gate, done = Gate(engine), threading.Event()
    app = create_app(many, engine)
    service: Service = app.state.service
    service.start(beside=True, on_loaded=done.set)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        await asyncio.to_thread(gate.entered.acquire)
        assert (await http.get("/livez")).status_code == 200
        unready = await http.get("/readyz")
        assert (unready.status_code, unready.json()["type"]) == (503, "/problems/not-ready")
        assert unready.headers["Retry-After"] == "2"
        assert (unready.json()["models"], unready.json()["pending"]) == ({}, ["a", "b", "broken", "c", "d"])
        assert (await http.get("/v2/health/ready")).status_code == 503
        waits = await http.get("/v2/models/d/ready")
        assert (waits.status_code, waits.headers["Retry-After"]) == (503, "2")
        lines = (await http.get("/v1/models")).json()["models"]
        assert {line["status"] for line in lines} == {"loading"}
        late = await http.post("/v1/sample", json={"model": "d", **FIXED, "timeout_s": 0.05})
        assert late.status_code == 504
        asked = asyncio.ensure_future(http.post("/v1/sample", json={"model": "d", **FIXED}))
        await asyncio.sleep(0.05)
        gate.open.set()
        assert (await asked).status_code == 200
        assert await asyncio.to_thread(done.wait, 60)
        assert gate.loaded == [("a", 1), ("d", 1), ("b", 1), ("c", 1)]  # what was asked for came next
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["models"]) == (200, dict.fromkeys("abcd", 1))
        assert list(ready.json()["unavailable"]) == ["broken"]


async def test_nothing_that_can_be_served_is_a_failure_after_all_were_tried(repository: Path, tmp_path: Path) -> None:
    from tests.service.conftest import FakeEngine

    shutil.copytree(repository / "broken", tmp_path / "broken")
    service: Service = create_app(Settings(models_dir=tmp_path, watch_s=0), FakeEngine()).state.service
    service.start(beside=True)
    assert eventually(lambda: service.failed is not None)
    assert "no model of" in str(service.failed)
    assert "broken/1" in str(service.failed)
    service.stop()


async def test_a_repository_that_cannot_be_read_at_first_is_looked_at_again(
    many: Settings, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_LOOK_AGAIN_S", 0.0)
    service: Service = create_app(many, engine).state.service
    refresh, tries = service.models.refresh, iter([RepositoryError("cannot be read"), OSError("odd")])

    def unsteady() -> Any:
        for error in tries:
            raise error
        return refresh()

    monkeypatch.setattr(service.models, "refresh", unsteady)
    service.start(beside=True)
    assert eventually(lambda: service.unready() is None)
    assert len(service.models.current()) == 4
    service.stop()


async def test_a_stop_does_not_wait_for_all_models(many: Settings, engine: Any) -> None:
    gate = Gate(engine)
    service: Service = create_app(many, engine).state.service
    service.start(beside=True)
    await asyncio.to_thread(gate.entered.acquire)
    threading.Timer(0.1, gate.open.set).start()
    await asyncio.to_thread(service.stop)
    assert gate.loaded == [("a", 1)]
    assert service.failed is None
