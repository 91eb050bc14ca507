"""Loading has its own thread: it respects deadlines, is bounded, and does not use the threads of responses."""

import asyncio
import math
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.errors import Kind, ProblemError
from service.registry import loading
from service.settings import Settings
from tests.service.registry.asking import Gate, acquired, answers, leased, loaded, registry_of, waited_for

pytestmark = pytest.mark.anyio

OLD = 16


@pytest.fixture
def settings(repository: Path, tmp_path: Path) -> Settings:
    """Settings of a repository of moons with many versions."""
    for number in range(1, OLD + 1):
        shutil.copytree(repository / "moons" / "1", tmp_path / "moons" / str(number))
    return Settings(models_dir=tmp_path, watch_s=0, max_old_versions=3)


@pytest.fixture
async def _one_thread_of_answers() -> AsyncIterator[None]:
    """The loop has one thread for responses; later tests, which may run on the same loop, have as many as before."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "answers") as answers:
        loop.set_default_executor(answers)
        yield
    loop.set_default_executor(ThreadPoolExecutor())


@pytest.fixture
def gate(running: Any) -> Iterator[Gate]:
    made = Gate(running.engine)
    yield made
    made.open.set()


FIXED = {"num_samples": 1, "seed": 0, "solver": "rk4", "steps": 2}


@pytest.mark.usefixtures("_one_thread_of_answers")
async def test_a_load_keeps_to_the_deadline_and_takes_no_thread_of_answers(running: Any, gate: Gate) -> None:
    requests = [running.post(**FIXED, version=number, timeout_s=0.2) for number in range(1, OLD)]
    requests += [running.post(**FIXED, version=1, timeout_s=0.2) for _ in range(20)]
    metrics = running.http.get("/metrics")
    *answers, counted, model = await asyncio.gather(*requests, metrics, running.post(**FIXED))
    assert {(answer.status_code, answer.json()["type"]) for answer in answers} == {(504, "/problems/deadline-exceeded")}
    assert "was still loading" in answers[0].json()["detail"]
    assert counted.status_code == model.status_code == 200
    assert len(gate.loaded) == 1  # the others were abandoned before their turn
    assert {name.rpartition("_")[0] for name in gate.threads} == {"pathline-loading"}
    gate.open.set()
    assert (await running.post(**FIXED, version=gate.loaded[0][1])).status_code == 200
    assert len(gate.loaded) == 1  # it continued with no request waiting


async def test_a_time_limit_over_that_of_the_service_loads_nothing(running: Any, gate: Gate) -> None:
    gate.open.set()
    answer = await running.post(**FIXED, version=1, timeout_s=601)
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["errors"]] == ["timeout_s"]
    assert not gate.loaded


async def test_the_time_limit_of_a_job_includes_its_loading(running: Any, gate: Gate) -> None:
    before = time.monotonic()
    answer = asyncio.ensure_future(running.post(**FIXED, version=1, timeout_s=100))
    await asyncio.to_thread(gate.entered.acquire)
    entered = time.monotonic()
    gate.open.set()
    assert (await answer).status_code == 200
    assert before + 100 <= running.engine.jobs[-1].deadline <= entered + 100


async def test_one_load_for_all_who_wait(running: Any, gate: Gate) -> None:
    requests = [asyncio.ensure_future(running.post(**FIXED, version=1)) for _ in range(30)]
    await asyncio.to_thread(gate.entered.acquire)
    asyncio.get_running_loop().call_later(0.05, gate.open.set)
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}
    assert gate.loaded == [("moons", 1)]


async def test_too_many_loads_are_refused(running: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_LOADS", 3)
    requests = [asyncio.ensure_future(running.post(**FIXED, version=number, timeout_s=60)) for number in range(1, 4)]
    await asyncio.to_thread(gate.entered.acquire)
    refused = await running.post(**FIXED, version=4)
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/overloaded")
    assert int(refused.headers["Retry-After"]) >= 1
    assert "3 versions or sizes of model 'moons' are already waiting to be loaded" in refused.json()["detail"]
    gate.open.set()
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}


async def _until_loads_wait(running: Any, count: int, *requests: "asyncio.Future[Any]") -> None:
    async with asyncio.timeout(60):
        while waited_for(running.service.registry) < count:
            for request in requests:
                assert not request.done(), request.result().text
            await asyncio.sleep(0.01)


async def test_models_take_turns(running: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_LOADS", 12)
    (root := running.service.settings.models_dir).joinpath("suns").mkdir()
    for number in (1, 2):
        shutil.copytree(root / "moons" / "1", root / "suns" / str(number))
    reloading = asyncio.ensure_future(asyncio.to_thread(running.service.registry.refresh))
    await asyncio.to_thread(gate.entered.acquire)  # the new model, in whose place the requests queue
    many = [asyncio.ensure_future(running.post(**FIXED, version=number, timeout_s=60)) for number in range(1, 13)]
    await _until_loads_wait(running, 12, *many)
    other = asyncio.ensure_future(running.http.post("/v1/sample", json={"model": "suns", "version": 1, **FIXED}))
    await _until_loads_wait(running, 13, *many, other)
    assert (await running.post(**FIXED, version=13)).status_code == 429  # its share is used
    gate.open.set()
    answers = await asyncio.gather(*many, other)
    assert {answer.status_code for answer in answers} == {200}
    await reloading
    assert gate.loaded.index(("suns", 1)) <= 3  # behind one load of the other model, not behind twelve
    assert len(gate.loaded) == 14


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
    requests = [asyncio.ensure_future(running.post(**FIXED, version=number)) for number in (1, 2)]
    await asyncio.to_thread(gate.entered.acquire)
    running.service.registry.close()
    assert (await requests[1]).json()["type"] == "/problems/draining"
    gate.open.set()
    assert (await requests[0]).status_code == 200
    for version in (2, 3, 3):
        assert (await running.post(**FIXED, version=version)).json()["type"] == "/problems/draining"


async def test_a_lease_that_cannot_be_made_keeps_nobody_waiting() -> None:
    loads, both = loading.Loads(), threading.Event()
    leases = iter([RuntimeError("no lease"), None])

    def make() -> None:
        if (fault := next(leases)) is not None:
            raise fault

    def load() -> Callable[[], None]:
        assert both.wait(60)
        return make

    waiting = [asyncio.create_task(loads.wait(("moons", 1), load, math.inf, "late")) for _ in range(2)]
    await asyncio.sleep(0)
    both.set()
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, RuntimeError)
    assert second is None
    loads.close()


async def test_old_versions_do_not_fill_memory(running: Any) -> None:
    for number in range(1, OLD):
        assert (await running.post(**FIXED, version=number)).status_code == 200
    kept = {arena.version for arena in running.engine.arenas}
    assert kept == {OLD, OLD - 1, OLD - 2, OLD - 3}
    text = (await running.http.get("/metrics")).text
    assert text.count("pathline_model_loaded{") == 4
    # Used again, so it is not the next to be unloaded.
    assert (await running.post(**FIXED, version=OLD - 3)).status_code == 200
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
    assert most <= 3  # before the next one is loaded: the current one and two old ones
    assert (await running.post(**FIXED)).json()["version"] == OLD


def test_versions_that_requests_hold_are_not_unloaded_for_others(settings: Settings, engine: Any) -> None:
    models = registry_of(settings.models_dir, engine, max_old_versions=3)
    models.load_all()
    held = [acquired(models, "moons", number) for number in (1, 2, 3)]
    with pytest.raises(ProblemError, match="3 older versions are in use, the limit is 3") as caught:
        answers(models, "moons", 4)
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.headers["Retry-After"] == "1"
    assert models.broken() == {}
    assert {model.version for model in loaded(models)} == {1, 2, 3, OLD}  # still available to others
    assert answers(models, "moons") == OLD
    held[1].release()
    assert answers(models, "moons", 4) == 4
    assert {arena.version for arena in engine.arenas} == {1, 3, 4, OLD}
    for each in held:
        each.release()


def test_an_unloaded_version_that_is_held_is_not_loaded_twice(settings: Settings, engine: Any) -> None:
    models = registry_of(settings.models_dir, engine)
    models.load_all()
    with leased(models, "moons") as held:
        models.unload("moons").result()
        assert loaded(models) == []
        with leased(models, "moons") as found:
            assert found is held
        assert len(engine.arenas) == 1
    assert len(engine.arenas) == 1
