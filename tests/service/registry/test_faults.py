"""Faults of versions: transient ones are retried, damage is not, and a fallback to an older version is reported."""

import errno
import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import service.registry.registry
from models.checkpoint.bound import add_to_report
from models.checkpoint.card import read_card
from models.repository import Repository
from service.errors import Kind, ProblemError
from service.registry import version
from service.registry.registry import Registry
from service.registry.version import ModelVersion
from service.responses.schemas import ModelBody, ModelListBody
from service.routes.models import describe
from service.settings import Settings
from tests.service.conftest import Clock
from tests.service.registry.asking import answers, registry_of
from tests.service.serving import conforming

WEIGHTS = "weights.safetensors"


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    """A repository with two versions of moons; the second one answers."""
    shutil.copytree(repository / "moons", tmp_path / "checkpoints" / "moons")
    return tmp_path / "checkpoints"


@pytest.fixture
def models(root: Path, engine: Any, clock: Clock) -> Registry:
    made = registry_of(root, engine, clock=clock)
    made.load_all()
    return made


Breaks = Callable[[str, BaseException | None], None]


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Breaks:
    """Make opening a file raise, by the end of its path; None lifts this again."""
    broken: dict[str, BaseException | None] = {}
    real = os.open

    def opened(path: Any, *arguments: Any, **named: Any) -> Any:
        for end, error in broken.items():
            if error is not None and str(path).endswith(end):
                raise error
        return real(path, *arguments, **named)

    monkeypatch.setattr("models.regular.os.open", opened)
    return broken.__setitem__


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record every attempt to load a version, in order."""
    tried: list[tuple[str, int]] = []
    real = service.registry.registry.load_version

    def counted(engine: Any, settings: Settings, name: str, version: int, *files: Any) -> Any:
        tried.append((name, version))
        return real(engine, settings, name, version, *files)

    monkeypatch.setattr(service.registry.registry, "load_version", counted)
    return tried


TRANSIENT = [
    OSError(errno.EIO, "Input/output error"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    MemoryError(),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: getattr(error, "strerror", "") or "memory")
@pytest.mark.parametrize("file", ["card.json", WEIGHTS])
def test_one_unreadable_moment_after_an_unload_passes(
    models: Registry, opening: Breaks, clock: Clock, error: BaseException, file: str
) -> None:
    models.unload("moons").result()
    opening(f"moons/2/{file}", error)
    assert answers(models, "moons") == 1
    assert models.entry("moons").fallback_from == 2
    opening(f"moons/2/{file}", None)
    clock.now += 1
    models.refresh()
    assert answers(models, "moons") == 2
    assert models.broken() == {}
    assert models.entry("moons").fallback_from is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: out of memory"), TimeoutError("slow")])
def test_an_engine_that_fails_once_is_asked_again(
    models: Registry, engine: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    models.unload("moons").result()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "load", refuse)
        with pytest.raises(ProblemError, match="it will be tried again in 1 s") as caught:
            answers(models, "moons")
    assert caught.value.kind is Kind.NOT_READY
    assert caught.value.headers["Retry-After"] == "1"
    clock.now += 1
    assert answers(models, "moons") == 2


@pytest.mark.parametrize("error", [KeyError("axis"), IndexError("index out of range in self")])
def test_a_network_that_fails_to_look_something_up_is_named_by_its_error(
    root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "load", refuse)
    models = registry_of(root, engine)
    models.open()
    models.refresh()
    assert models.broken() == {"moons": dict.fromkeys((2, 1), f"{type(error).__name__}: {error}")}
    assert any(record.exc_info for record in caplog.records)


def test_who_waited_for_a_load_that_failed_slowly_is_told_why(
    root: Path, engine: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        clock.now += 5  # longer than until the next try
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "load", refuse)
    models = registry_of(root, engine, clock=clock)
    models.open()
    for number in (None, 1):
        with pytest.raises(ProblemError, match="cannot be served: RuntimeError: out of memory; it will be tried again"):
            answers(models, "moons", number)


def test_a_version_that_cannot_be_described_is_refused_and_leaves_memory(
    root: Path, engine: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = ModelVersion.describe

    def odd(self: ModelVersion) -> dict[str, Any]:
        if self.version == 2:
            raise ValueError("odd")
        return describe(self)

    monkeypatch.setattr(ModelVersion, "describe", odd)
    models = registry_of(root, engine, clock=clock)
    models.load_all()
    for _ in range(5):
        assert answers(models, "moons") == 1
        assert models.broken() == {"moons": {2: "ValueError: odd"}}
        assert [arena.version for arena in engine.arenas] == [1]
        clock.now += 100
        models.refresh()


def test_a_version_whose_decoder_fails_leaves_nothing_in_memory(
    models: Registry, engine: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise MemoryError

    models.unload("moons").result()
    monkeypatch.setattr(version, "_row_caller", refuse)
    for _ in range(3):
        with pytest.raises(ProblemError, match="cannot be served: MemoryError"):
            answers(models, "moons")
        assert engine.arenas == []
        clock.now += 100


def test_a_report_of_another_form_is_left_out(root: Path, engine: Any) -> None:
    folder = root / "moons" / "2"
    add_to_report(folder, read_card(folder), {"report": ["words"]})
    models = registry_of(root, engine)
    models.load_all()
    assert answers(models, "moons") == 2
    assert describe(models.entry("moons"))["served"][0]["report"] == []


def test_a_request_for_a_version_tries_it_again_without_a_look(models: Registry, opening: Breaks, clock: Clock) -> None:
    opening("moons/1/card.json", TRANSIENT[0])
    with pytest.raises(ProblemError, match="Input/output error; it will be tried again in 1 s"):
        answers(models, "moons", 1)
    opening("moons/1/card.json", None)
    with pytest.raises(ProblemError, match="Input/output error"):  # not at once
        models.check_ready("moons", 1)
    clock.now += 1
    assert answers(models, "moons", 1) == 1


def test_tries_become_rarer(
    root: Path, engine: Any, clock: Clock, opening: Breaks, loads: list[tuple[str, int]]
) -> None:
    opening(f"moons/2/{WEIGHTS}", TRANSIENT[0])
    models = registry_of(root, engine, clock=clock)
    models.load_all()
    for _ in range(600):  # one check per second
        models.refresh()
        clock.now += 1
    # At 0, 1, 3, 7, 15, 31, 63 s, and every minute from then on
    assert loads.count(("moons", 2)) == 7 + (600 - 63) // 60


def test_what_is_damaged_is_read_again_only_when_it_changes_or_for_a_reload(
    models: Registry, root: Path, clock: Clock, loads: list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(root / "moons" / "2", root / "moons" / "3")
    weights = root / "moons" / "3" / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    for _ in range(10):
        models.refresh()
        clock.now += 100
        with pytest.raises(ProblemError, match=r"version 3 cannot be served.*is damaged") as caught:
            answers(models, "moons", 3)
        assert caught.value.kind is Kind.BROKEN_MODEL
    assert loads == [("moons", 3)]
    # The version itself, and the fallback.
    assert len([record for record in caplog.records if "is damaged" in record.message]) == 2
    assert [refused[:2] for refused in models.refresh(retry_failed=True).refused] == [("moons", 3)]
    assert loads == [("moons", 3)] * 2
    weights.write_bytes(content)
    clock.now += 1
    assert answers(models, "moons", 3) == 3  # a request for it sees the change too


def test_an_unreadable_folder_changes_nothing_for_what_is_loaded(
    models: Registry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def refuse(self: Path, **named: Any) -> Any:
        if self.is_relative_to(root / "moons"):
            raise OSError(errno.EIO, "Input/output error")
        return stat(self, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        models.refresh()
        assert answers(models, "moons") == 2
        assert "was changed" not in str(models.broken())
    models.refresh()
    assert (models.current(), models.broken()) == ([("moons", 2)], {})


def test_a_model_that_cannot_be_looked_at_stops_no_other(
    root: Path, engine: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(repository / "gaussian", root / "gaussian")
    models = registry_of(root, engine)
    versions = Repository.versions

    def odd(self: Repository, name: str) -> list[int]:
        if name == "gaussian":
            raise ValueError("odd")
        return versions(self, name)

    models.open()
    with monkeypatch.context() as patch:
        patch.setattr(Repository, "versions", odd)
        models.refresh()
    assert (models.current(), models.complete) == ([("moons", 2)], True)
    assert models.broken() == {"gaussian": {0: "ValueError: odd"}}
    models.refresh()
    assert models.current() == [("gaussian", 1), ("moons", 2)]


def test_a_loaded_version_whose_files_lead_out_stops_no_other(
    models: Registry, root: Path, repository: Path, tmp_path: Path
) -> None:
    shutil.move(root / "moons" / "2" / WEIGHTS, tmp_path / "moved")
    (root / "moons" / "2" / WEIGHTS).symlink_to(tmp_path / "moved")
    shutil.copytree(repository / "gaussian", root / "gaussian")
    assert models.refresh().loaded == [("gaussian", 1)]
    assert answers(models, "moons") == 2
    assert "leads out of the repository" in models.broken()["moons"][2]
    assert str(tmp_path) not in str(describe(models.entry("moons")))


def test_a_link_that_led_out_is_served_once_it_is_a_copy(
    models: Registry, root: Path, clock: Clock, tmp_path: Path
) -> None:
    shutil.copytree(root / "moons" / "2", root / "moons" / "3")
    weights = root / "moons" / "3" / WEIGHTS
    shutil.move(weights, tmp_path / "moved")
    weights.symlink_to(tmp_path / "moved")
    models.refresh()
    assert answers(models, "moons") == 2
    weights.unlink()
    shutil.copy(tmp_path / "moved", weights)
    clock.now += 1
    models.refresh()
    assert answers(models, "moons") == 3


def test_a_deleted_version_answers_until_another_does(
    models: Registry, root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "moons" / "2")
    load, meanwhile = engine.load, []

    def ask(*what: Any) -> Any:
        meanwhile.append(answers(models, "moons"))
        return load(*what)

    monkeypatch.setattr(engine, "load", ask)
    assert models.refresh().unloaded == [("moons", 2)]
    assert meanwhile == [2]
    assert answers(models, "moons") == 1
    assert describe(models.entry("moons"))["versions"] == [1]


def test_a_deleted_version_goes_once_the_one_before_it_is_loaded_again(models: Registry, root: Path) -> None:
    shutil.copytree(root / "moons" / "2", root / "moons" / "3")
    assert models.refresh().unloaded == [("moons", 2)]
    shutil.rmtree(root / "moons" / "3")
    changes = models.refresh()
    assert (changes.loaded, changes.unloaded) == ([("moons", 2)], [("moons", 3)])


def test_a_deleted_version_answers_while_no_other_can(models: Registry, root: Path, clock: Clock) -> None:
    weights = root / "moons" / "1" / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    shutil.rmtree(root / "moons" / "2")
    for _ in range(3):
        models.refresh()
        clock.now += 100
        assert answers(models, "moons") == answers(models, "moons", 2) == 2
    weights.write_bytes(content)
    changes = models.refresh()
    assert (changes.loaded, changes.unloaded) == ([("moons", 1)], [("moons", 2)])
    assert describe(models.entry("moons"))["versions"] == [1]


def test_a_version_that_was_deleted_or_spoilt_after_an_unload_gives_way_at_once(models: Registry, root: Path) -> None:
    models.unload("moons").result()
    card = root / "moons" / "2" / "card.json"
    card.write_text(card.read_text().replace('"seed": 0', '"seed": 1'))
    assert answers(models, "moons") == 1
    models.unload("moons").result()
    shutil.copytree(root / "moons" / "1", root / "moons" / "4")
    shutil.rmtree(root / "moons" / "1")
    assert answers(models, "moons") == 4
    models.unload("moons").result()
    shutil.rmtree(root / "moons")
    with pytest.raises(ProblemError, match="unknown"):
        answers(models, "moons")


def test_requests_have_the_better_version_tried_again(
    models: Registry, opening: Breaks, clock: Clock, loads: list[tuple[str, int]]
) -> None:
    models.unload("moons").result()
    opening("moons/2/card.json", TRANSIENT[0])
    assert answers(models, "moons") == 1
    opening("moons/2/card.json", None)
    for _ in range(5):  # not yet
        assert answers(models, "moons") == 1
    clock.now += 1
    for _ in range(5):
        assert answers(models, "moons") in (1, 2)  # a check may be under way
    models.refresh()  # after it
    assert answers(models, "moons") == 2
    assert loads.count(("moons", 2)) == 2


# How a fallback is reported.


@pytest.fixture
def settings(root: Path) -> Settings:
    """Settings of a repository with a damaged highest version, 3."""
    shutil.copytree(root / "moons" / "2", root / "moons" / "3")
    weights = root / "moons" / "3" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    return Settings(models_dir=root, watch_s=0)


HEADER = "X-Pathline-Fallback-From"
FIXED = {"num_samples": 2, "seed": 0, "solver": "rk4", "steps": 2}


async def _asked(running: Any, accept: str = "application/json", **more: Any) -> httpx.Response:
    return await running.post({"Accept": accept}, **FIXED, **more)


@pytest.mark.anyio
async def test_answers_say_that_an_older_version_answers(running: Any) -> None:
    answer = await _asked(running)
    assert (answer.json()["version"], answer.json()["fallback_from"], answer.headers[HEADER]) == (2, 3, "3")
    packed = await _asked(running, "application/x-npz")
    with np.load(io.BytesIO(packed.content)) as arrays:
        assert json.loads(arrays["meta"].tobytes())["fallback_from"] == 3
    picture = await _asked(running, "image/png")
    assert packed.headers[HEADER] == picture.headers[HEADER] == "3"
    named = await _asked(running, version=2)  # a request that names a version gets it
    assert "fallback_from" not in named.json()
    assert HEADER not in named.headers


@pytest.mark.anyio
async def test_other_doors_say_it_too(running: Any) -> None:
    streamed = await running.http.post("/v1/sample/stream", json={"model": "moons", **FIXED})
    start, *_, completed = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert start["fallback_from"] == completed["fallback_from"] == 3
    body = {"outputs": [{"name": "samples"}], "parameters": {"solver": "rk4", "steps": 2, "num_samples": 1}}
    inferred = await running.http.post("/v2/models/moons/infer", json=body)
    assert (inferred.json()["model_version"], inferred.json()["parameters"]["fallback_from"]) == ("2", 3)
    encoded = await running.http.post(
        "/v1/models/moons/encode", json={"samples": [[0, 0]], "solver": "rk4", "steps": 2}
    )
    assert encoded.json()["fallback_from"] == 3
    assert streamed.headers[HEADER] == inferred.headers[HEADER] == encoded.headers[HEADER] == "3"


@pytest.mark.anyio
async def test_lists_and_metrics_say_it(running: Any, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    [line] = conforming(ModelListBody, (await running.http.get("/v1/models")).json())["models"]
    assert (line["status"], line["version"], line["fallback_from"]) == ("served", 2, 3)
    found = conforming(ModelBody, (await running.http.get("/v1/models/moons")).json())
    assert (found["serving"], found["fallback_from"], found["unavailable"][0]["version"]) == (2, 3, 3)
    assert 'pathline_model_fallback{model="moons"} 1.0' in (await running.http.get("/metrics")).text
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            running.service.registry.refresh()
    assert not caplog.records  # logged when it began
    shutil.copy(root / "moons" / "2" / WEIGHTS, root / "moons" / "3" / WEIGHTS)
    running.service.registry.refresh()
    assert "pathline_model_fallback{" not in (await running.http.get("/metrics")).text
    assert (await _asked(running)).json()["version"] == 3


@pytest.mark.anyio
async def test_the_fallback_is_logged_once(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    messages = [
        record.getMessage() for record in caplog.get_records("setup") if "instead of version" in record.getMessage()
    ]
    assert len(messages) == 1
    assert messages[0].startswith("model moons: version 2 answers instead of version 3, which cannot be loaded: ")
