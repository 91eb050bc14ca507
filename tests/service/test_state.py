"""The service answers while it starts, follows its repository, and stops without waiting for loads."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from models.repository import RepositoryError
from service import state
from service.app import create_app
from service.settings import Settings
from service.state import Service
from tests.service.registry.asking import Gate, waited_for
from tests.service.serving import calling
from tests.service.waiting import eventually

pytestmark = pytest.mark.anyio

FIXED = {"num_samples": 1, "seed": 0, "solver": "rk4", "steps": 2}


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
    service.start(in_thread=True, on_loaded=done.set)
    async with calling(app) as http:
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
        request = asyncio.ensure_future(http.post("/v1/sample", json={"model": "d", **FIXED}))
        async with asyncio.timeout(60):
            while not waited_for(service.registry):
                await asyncio.sleep(0.001)
        gate.open.set()
        assert (await request).status_code == 200
        assert await asyncio.to_thread(done.wait, 60)
        assert gate.loaded == [("a", 1), ("d", 1), ("b", 1), ("c", 1)]  # the requested one came next
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["models"]) == (200, dict.fromkeys("abcd", 1))
        assert list(ready.json()["unavailable"]) == ["broken"]


async def test_nothing_that_can_be_served_is_a_failure_after_all_were_tried(repository: Path, tmp_path: Path) -> None:
    from tests.service.conftest import FakeEngine

    shutil.copytree(repository / "broken", tmp_path / "broken")
    service: Service = create_app(Settings(models_dir=tmp_path, watch_s=0), cast(Any, FakeEngine())).state.service
    service.start(in_thread=True)
    assert eventually(lambda: service.failed is not None)
    assert "no model in" in str(service.failed)
    assert "broken/1" in str(service.failed)
    service.stop()


async def test_a_repository_that_cannot_be_read_at_first_is_looked_at_again(
    many: Settings, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_RETRY_S", 0.0)
    service: Service = create_app(many, engine).state.service
    refresh, tries = service.registry.refresh, iter([RepositoryError("cannot be read"), OSError("odd")])

    def unsteady() -> Any:
        for error in tries:
            raise error
        return refresh()

    monkeypatch.setattr(service.registry, "refresh", unsteady)
    service.start(in_thread=True)
    assert eventually(lambda: service.unready() is None)
    assert len(service.registry.current()) == 4
    service.stop()


async def test_a_stop_does_not_wait_for_all_models(many: Settings, engine: Any) -> None:
    gate = Gate(engine)
    service: Service = create_app(many, engine).state.service
    service.start(in_thread=True)
    await asyncio.to_thread(gate.entered.acquire)
    threading.Timer(0.1, gate.open.set).start()
    await asyncio.to_thread(service.stop)
    assert gate.loaded == [("a", 1)]
    assert service.failed is None


@pytest.mark.parametrize("error", [RepositoryError("gone"), ValueError("odd")])
async def test_the_watch_goes_on_after_errors_and_says_them_once(
    many: Settings, engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    service: Service = create_app(many.model_copy(update={"watch_s": 0.001}), engine).state.service
    seen, fails, refresh = threading.Semaphore(0), threading.Event(), service.registry.refresh

    def unsteady() -> Any:
        if fails.is_set():
            seen.release()
            raise error
        return refresh()

    monkeypatch.setattr(service.registry, "refresh", unsteady)

    def said() -> int:
        return sum(str(error) in record.getMessage() for record in caplog.records)

    service.start()
    try:
        fails.set()
        for _ in range(5):
            assert seen.acquire(timeout=60)
        assert said() == 1
        fails.clear()
        shutil.copytree(many.models_dir / "a", many.models_dir / "e")
        assert eventually(lambda: ("e", 1) in service.registry.current())
        fails.set()
        assert eventually(lambda: said() == 2)  # again, as it had passed
    finally:
        service.stop()


async def test_a_stop_does_not_wait_for_the_next_check(many: Settings, engine: Any) -> None:
    service: Service = create_app(many.model_copy(update={"watch_s": 1000.0}), engine).state.service
    service.start()
    service.stop()
    assert service._watch is not None
    assert not service._watch.is_alive()
