"""A registry starts with all models that can be loaded; the others keep their reasons."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.repository import RepositoryError
from service.errors import Kind, ProblemError
from service.registry.registry import Registry
from service.routes.models import describe, summary
from service.settings import Settings, StartError
from tests.service.registry.asking import Gate, acquired, answers, leased, loaded, registry_of


def _spoil(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    return tmp_path


def test_highest_version_answers(root: Path, engine: Any) -> None:
    models = registry_of(root, engine)
    models.load_all()
    assert answers(models, "moons") == 2
    assert [served.version for served in loaded(models)] == [2]
    assert list(engine.loaded) == [("moons", 2)]


def test_older_version_is_loaded_on_first_use(root: Path, engine: Any) -> None:
    models = registry_of(root, engine)
    models.load_all()
    assert answers(models, "moons", 1) == 1
    assert answers(models, "moons", 1) == 1
    assert list(engine.loaded) == [("moons", 2), ("moons", 1)]


def test_bad_highest_version_leaves_the_old_one(root: Path, engine: Any) -> None:
    _spoil(root / "moons" / "2")
    models = registry_of(root, engine)
    models.load_all()
    assert answers(models, "moons") == 1
    body = describe(models.entry("moons"))
    assert (body["status"], body["serving"], body["versions"]) == ("served", 1, [1, 2])
    assert body["unavailable"][0]["reason"].startswith("moons/2/weights.safetensors")
    with pytest.raises(ProblemError, match="version 2 cannot be served") as caught:
        answers(models, "moons", 2)
    assert caught.value.kind is Kind.BROKEN_MODEL


def test_a_new_model_can_be_waited_for_until_it_answers(
    root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = registry_of(root, engine)
    models.load_all()
    shutil.copytree(root / "moons", root / "new")
    calls, load = [], engine.load

    def ask_meanwhile(*what: Any) -> Any:
        assert (summary(models.entry("new"))["status"], summary(models.entry("new"))["loaded"]) == ("loading", False)
        with pytest.raises(ProblemError, match="'new' is being loaded; try again") as caught:
            models.check_ready("new")
        calls.append(caught.value.kind)
        return load(*what)

    monkeypatch.setattr(engine, "load", ask_meanwhile)
    models.refresh()
    assert calls == [Kind.NOT_READY]
    assert answers(models, "new") == 2


def test_model_that_the_engine_refuses(root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(engine, "load", refuse)
    with pytest.raises(StartError, match="moons/2: RuntimeError: out of memory; moons/1"):
        registry_of(root, engine).load_all()


def test_nothing_to_serve(tmp_path: Path, engine: Any) -> None:
    models = registry_of(tmp_path, engine)
    with pytest.raises(StartError, match="is empty; run `make models`"):
        models.load_all()


def test_pickle_is_no_model(tmp_path: Path, engine: Any) -> None:
    (tmp_path / "evil" / "1").mkdir(parents=True)
    (tmp_path / "evil" / "1" / "model.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(StartError, match=r"no model in .* can be loaded: evil/1: evil/1/card\.json"):
        registry_of(tmp_path, engine).load_all()


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_repository_that_is_none(tmp_path: Path, engine: Any, kind: str) -> None:
    path = tmp_path / "checkpoints"
    if kind == "file":
        path.write_text("")
    with pytest.raises(StartError, match="set PATHLINE_MODELS_DIR") as caught:
        registry_of(path, engine)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "moons/1", "/etc", "nothing"])
def test_other_names(root: Path, engine: Any, name: str) -> None:
    models = registry_of(root, engine)
    models.load_all()
    for ask in (models.check_ready, models.entry, lambda name: answers(models, name)):
        with pytest.raises(ProblemError, match="available: moons"):
            ask(name)


def test_model_whose_folder_cannot_be_read_is_listed_as_broken(
    root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "gaussian" / "1").mkdir(parents=True)
    iterdir = Path.iterdir

    def refuse(self: Path) -> Any:
        if self.name == "gaussian":
            raise PermissionError(13, "Permission denied")
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    models = registry_of(root, engine)
    models.load_all()
    assert [entry.name for entry in models.entries()] == ["gaussian", "moons"]
    reason = "gaussian: cannot be read: Permission denied"
    assert describe(models.entry("gaussian"))["unavailable"] == [{"version": None, "reason": reason}]
    assert f"model gaussian is not served, and will be tried again: {reason}" in caplog.messages
    with pytest.raises(ProblemError, match=f"model 'gaussian' cannot be served: {reason}") as caught:
        answers(models, "gaussian")
    assert caught.value.kind is Kind.NOT_READY  # permissions may be granted
    assert caught.value.headers["Retry-After"] == "2"
    shutil.rmtree(root / "moons")
    with pytest.raises(StartError, match=r"can be loaded: .*gaussian: cannot be read"):
        registry_of(root, engine).load_all()


def _copy(root: Path, name: str, version: int, new: int) -> Path:
    """Copy the files of a version to the place of another one, as a user who copies a folder."""
    return Path(shutil.copytree(root / name / str(version), root / name / str(new)))


@pytest.fixture
def models(root: Path, engine: Any) -> Registry:
    made = registry_of(root, engine)
    made.load_all()
    return made


def test_a_new_version_takes_over(models: Registry, root: Path, engine: Any) -> None:
    old = acquired(models, "moons")
    _copy(root, "moons", 2, 3)
    changes = models.refresh()
    assert (changes.loaded, changes.unloaded, changes.refused) == ([("moons", 3)], [("moons", 2)], [])
    assert answers(models, "moons") == 3
    assert [arena.version for arena in engine.arenas] == [2, 3]  # a request still holds the old one
    old.release()
    assert [arena.version for arena in engine.arenas] == [3]
    assert describe(models.entry("moons"))["versions"] == [1, 2, 3]


def test_a_version_that_is_asked_for_by_number_stays(models: Registry, root: Path, engine: Any) -> None:
    assert answers(models, "moons", 1) == 1
    _copy(root, "moons", 2, 3)
    models.refresh()
    assert sorted(arena.version for arena in engine.arenas) == [1, 3]
    assert answers(models, "moons", 2) == 2  # the previous one is loaded again


@pytest.mark.parametrize(("held", "loads"), [(True, [1, 2]), (False, [1, 2, 1])])
def test_a_version_that_answered_for_all_leaves_memory_also_if_it_is_asked_for_by_number(
    models: Registry, root: Path, engine: Any, held: bool, loads: list[int]
) -> None:
    gate = Gate(engine)
    gate.open.set()
    assert answers(models, "moons", 1) == 1
    shutil.rmtree(root / "moons" / "2")
    models.refresh()
    lease = acquired(models, "moons") if held else None
    _copy(root, "moons", 1, 2)
    assert models.refresh().unloaded == [("moons", 1)]
    assert [arena.version for arena in engine.arenas] == ([1, 2] if held else [2])
    for _ in range(2):  # it stays from now on
        with leased(models, "moons", 1) as model:
            assert lease is None or model is lease.model
        models.refresh()
    assert gate.loaded == [("moons", version) for version in loads]
    if lease is not None:
        lease.release()
    models.unload("moons").result()
    assert engine.arenas == []


def test_a_fault_of_a_refresh_names_the_model_which_goes_on_as_it_was_loaded(
    models: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(_: object) -> list[int]:
        raise ValueError("odd")

    monkeypatch.setattr(models.repository, "versions", odd)
    assert models.refresh().refused == [("moons", 0, "ValueError: odd")]
    stays = "model moons stays in use as it was loaded, and will be tried again: ValueError: odd"
    assert caplog.messages == ["loading model moons failed", stays]
    assert answers(models, "moons") == 2


def test_nothing_changes_when_nothing_changed(models: Registry, engine: Any) -> None:
    before = describe(models.entry("moons"))
    changes = models.refresh()
    assert not changes.loaded
    assert not changes.refused
    assert describe(models.entry("moons")) == before
    assert len(engine.arenas) == 1


def test_a_half_copied_version_waits_until_it_is_whole(models: Registry, root: Path) -> None:
    folder = _copy(root, "moons", 2, 3)
    weights = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(weights[:100])
    assert [refused[:2] for refused in models.refresh().refused] == [("moons", 3)]
    assert answers(models, "moons") == 2
    [fault] = describe(models.entry("moons"))["unavailable"]
    assert fault["version"] == 3
    assert "is damaged" in fault["reason"]
    assert not models.refresh().refused  # reported once
    (folder / "weights.safetensors").write_bytes(weights)
    assert models.refresh().loaded == [("moons", 3)]
    assert describe(models.entry("moons"))["unavailable"] == []


def test_a_version_without_a_card_is_refused_with_the_reason(models: Registry, root: Path) -> None:
    (root / "moons" / "3").mkdir()
    models.refresh()
    assert "moons/3/card.json: is missing; the folder contains nothing" in str(
        describe(models.entry("moons"))["unavailable"]
    )
    assert answers(models, "moons") == 2


def test_a_served_version_whose_files_change_goes_on_as_it_was(models: Registry, root: Path) -> None:
    [served] = loaded(models)
    weights = root / "moons" / "2" / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert "was changed after it was loaded" in models.refresh().refused[0][2]
    with leased(models, "moons") as model:
        assert model is served
    assert describe(models.entry("moons"))["serving"] == 2
    models.unload("moons").result()  # then the version on disk is loaded
    models.refresh()
    assert answers(models, "moons") == 1


def test_a_reload_sees_that_an_unloaded_version_was_changed(models: Registry, root: Path) -> None:
    models.unload("moons").result()
    _spoil(root / "moons" / "2")
    changes = models.refresh(retry_failed=True)
    assert changes.loaded == [("moons", 1)]
    assert [refused[:2] for refused in changes.refused] == [("moons", 2)]


def test_an_unloaded_version_whose_files_changed_is_tried_before_an_older_one_answers(
    models: Registry, root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.unload("moons").result()
    assert answers(models, "moons", 1) == 1  # it is in memory, and 2 is not
    os.utime(root / "moons" / "2" / "card.json", (1, 1))
    load, meanwhile = engine.load, []

    def look(*what: Any) -> Any:
        meanwhile.append((models.entry("moons").current, what[1]))
        return load(*what)

    monkeypatch.setattr(engine, "load", look)
    assert models.refresh().loaded == [("moons", 2)]
    assert meanwhile == [(2, 2)]
    assert {model.version for model in loaded(models)} == {1, 2}


@pytest.mark.parametrize("beside", [1, None])
def test_a_changed_version_that_leaves_memory_is_loaded_as_it_is_now(
    models: Registry, root: Path, beside: int | None
) -> None:
    if beside is not None:
        assert answers(models, "moons", beside) == beside
    [served] = [model for model in loaded(models) if model.version == 2]
    card = root / "moons" / "2" / "card.json"
    edited = json.loads(card.read_text()) | {"dataset": {"name": "other"}}
    del edited["card_sha256"]
    card.write_text(json.dumps(edited))
    assert "was changed after it was loaded" in models.refresh().refused[0][2]
    models._loads.run("moons", lambda: models._forget(served)).result()  # for another, as memory is limited
    assert models.entry("moons").fallback_from is None
    assert models.broken() == {}
    with leased(models, "moons") as model:
        assert model.version == 2
        assert model.card.dataset == {"name": "other"}


def test_changed_files_wait_for_the_requests_that_use_the_version_as_it_was(
    models: Registry, root: Path, engine: Any
) -> None:
    """Otherwise a measurement that is under way would be of two networks."""
    with leased(models, "moons", 2):
        models.unload("moons").result()
        card = root / "moons" / "2" / "card.json"
        edited = json.loads(card.read_text()) | {"dataset": {"name": "other"}}
        del edited["card_sha256"]
        card.write_text(json.dumps(edited))
        with pytest.raises(ProblemError, match=r"was changed, and requests still use it .* again in 1 s") as refused:
            answers(models, "moons", 2)
        assert refused.value.kind is Kind.NOT_READY
        assert answers(models, "moons") == 1
        assert [arena.version for arena in engine.arenas] == [2, 1]
    models.refresh(retry_failed=True)
    with leased(models, "moons") as model:
        assert model.version == 2
        assert model.card.dataset == {"name": "other"}


def test_equal_files_in_place_of_the_loaded_ones_are_no_change(models: Registry, root: Path) -> None:
    [served] = loaded(models)
    folder = root / "moons" / "2"
    for change in ("touch", "copy"):
        if change == "touch":
            for file in folder.iterdir():
                os.utime(file, (1, 1))
        else:
            shutil.copytree(folder, root / ".next")
            shutil.rmtree(folder)
            (root / ".next").rename(folder)
        assert models.refresh().refused == []
        assert describe(models.entry("moons"))["unavailable"] == []
        assert loaded(models) == [served]
    card = folder / "card.json"
    card.write_text(card.read_text().replace("none", "nine"))  # as large as before, and not the same
    assert "was changed after it was loaded" in models.refresh().refused[0][2]


def test_models_appear_and_disappear(models: Registry, root: Path, repository: Path, engine: Any) -> None:
    shutil.copytree(repository / "gaussian", root / "gaussian")
    assert models.refresh().loaded == [("gaussian", 1)]
    shutil.rmtree(root / "moons" / "2")
    assert models.refresh().unloaded == [("moons", 2)]
    assert answers(models, "moons") == 1
    shutil.rmtree(root / "moons")
    models.refresh()
    assert [entry.name for entry in models.entries()] == ["gaussian"]
    assert [arena.name for arena in engine.arenas] == ["gaussian"]
    with pytest.raises(ProblemError, match="unknown; available: gaussian"):
        answers(models, "moons")


def test_a_repository_that_cannot_be_read_changes_nothing(models: Registry, root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(RepositoryError, match="does not exist"):
        models.refresh()
    assert answers(models, "moons") == 2
    with pytest.raises(ProblemError, match="cannot be served: model repository: does not exist;") as caught:
        answers(models, "moons", 1)
    assert str(root) not in caught.value.detail
    root.with_name("elsewhere").rename(root)
    models.refresh()
    assert (answers(models, "moons", 1), models.broken()) == (1, {})


def test_unloading_frees_and_the_next_request_loads(models: Registry, engine: Any) -> None:
    assert models.unload("moons").result() == [2]
    assert engine.arenas == []
    assert summary(models.entry("moons"))["status"] == "served"
    assert summary(models.entry("moons"))["loaded"] is False
    assert loaded(models) == []
    assert answers(models, "moons") == 2
    assert describe(models.entry("moons"))["served"][0]["loaded"] is True
    with pytest.raises(ProblemError, match="unknown"):
        models.unload("nothing").result()


def test_the_least_recently_used_gives_way(root: Path, repository: Path, engine: Any) -> None:
    shutil.copytree(repository / "digits", root / "digits")
    shutil.copytree(repository / "gaussian", root / "gaussian")
    everything = registry_of(root, engine)
    everything.load_all()
    limit = sum(served.bytes for served in loaded(everything)) + 100
    calls: list[tuple[str, int, bool, str]] = []
    metrics: Any = SimpleNamespace(model_is_loaded=lambda *change: calls.append(change))
    models = Registry(Settings(models_dir=root, max_model_bytes=limit), engine, metrics)
    models.load_all()
    assert len(loaded(models)) == 3
    answers(models, "digits")
    answers(models, "gaussian")
    answers(models, "moons", 1)  # moons 2 was used least recently
    assert {(served.name, served.version) for served in loaded(models)} == {
        ("digits", 1), ("gaussian", 1), ("moons", 1)
    }  # fmt: skip
    assert calls[-2:] == [("moons", 2, False, "eager"), ("moons", 1, True, "eager")]
    assert summary(models.entry("moons"))["version"] == 2
    shutil.rmtree(root / "gaussian")
    with pytest.raises(StartError, match="over PATHLINE_MAX_MODEL_BYTES=100"):
        registry_of(root, engine, max_model_bytes=100).load_all()


@pytest.mark.parametrize("what", ["card.json", "weights.safetensors", "folder"])
def test_links_that_lead_out_are_refused(models: Registry, root: Path, tmp_path_factory: Any, what: str) -> None:
    outside = tmp_path_factory.mktemp("outside")
    folder = _copy(root, "moons", 2, 3)
    source = folder if what == "folder" else folder / what
    shutil.move(source, outside / "moved")
    source.symlink_to(outside / "moved")
    models.refresh()
    assert answers(models, "moons") == 2
    if what == "folder":
        with pytest.raises(ProblemError, match="has no version 3"):
            answers(models, "moons", 3)
    else:
        [fault] = describe(models.entry("moons"))["unavailable"]
        assert fault == {
            "version": 3,
            "reason": f"moons/3/{what}: leads out of the repository; copy the file here instead",
        }


def test_plans_behind_a_link_that_leads_out_are_not_shown(models: Registry, root: Path, tmp_path_factory: Any) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.json"
    secret.write_text('{"format": "hunter2"}')
    (_copy(root, "moons", 2, 3) / "plans.json").symlink_to(secret)
    models.refresh()
    assert answers(models, "moons") == 3
    [fault] = [each["tuned_fault"] for each in describe(models.entry("moons"))["served"] if each["version"] == 3]
    assert fault == "plans.json: leads out of the repository; copy the file here instead"
