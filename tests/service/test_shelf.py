"""Models come up as far as they can; what cannot be loaded keeps its reason."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from service.errors import Kind, ProblemError
from service.settings import StartError
from service.shelf import Models


def _spoil(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    return tmp_path


def test_highest_version_answers(root: Path, engine: Any) -> None:
    models = Models(root, engine)
    models.load_all()
    assert models.get("moons").version == 2
    assert [served.version for served in models.served()] == [2]
    assert list(engine.loaded) == [("moons", 2)]


def test_older_version_is_loaded_on_first_use(root: Path, engine: Any) -> None:
    models = Models(root, engine)
    models.load_all()
    assert models.find("moons", 1).version == 1
    assert models.find("moons", 1) is models.get("moons", 1)
    assert list(engine.loaded) == [("moons", 2), ("moons", 1)]


def test_bad_highest_version_leaves_the_old_one(root: Path, engine: Any) -> None:
    _spoil(root / "moons" / "2")
    models = Models(root, engine)
    models.load_all()
    assert models.get("moons").version == 1
    body = models.describe("moons")
    assert (body["status"], body["serving"], body["versions"]) == ("served", 1, [1, 2])
    assert body["unavailable"][0]["reason"].startswith("moons/2/weights.safetensors")
    with pytest.raises(ProblemError, match="version 2 cannot be served") as caught:
        models.find("moons", 2)
    assert caught.value.kind is Kind.BROKEN_MODEL


def test_model_that_the_engine_refuses(root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(engine, "load", refuse)
    with pytest.raises(StartError, match="moons/2: RuntimeError: out of memory; moons/1"):
        Models(root, engine).load_all()


def test_engine_decides_what_is_deterministic(root: Path, engine: Any) -> None:
    engine.deterministic = False
    models = Models(root, engine)
    models.load_all()
    assert models.get("moons").deterministic is False
    assert models.summary("moons")["deterministic"] is False


def test_nothing_to_serve(tmp_path: Path, engine: Any) -> None:
    models = Models(tmp_path, engine)
    with pytest.raises(StartError, match="is empty; run `make models`"):
        models.load_all()


def test_pickle_is_no_model(tmp_path: Path, engine: Any) -> None:
    (tmp_path / "evil" / "1").mkdir(parents=True)
    (tmp_path / "evil" / "1" / "model.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(StartError, match=r"no model of .* can be loaded: evil/1: evil/1/card\.json"):
        Models(tmp_path, engine).load_all()


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_repository_that_is_none(tmp_path: Path, engine: Any, kind: str) -> None:
    path = tmp_path / "checkpoints"
    if kind == "file":
        path.write_text("")
    with pytest.raises(StartError, match="set PATHLINE_MODELS_DIR") as caught:
        Models(path, engine)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "moons/1", "/etc", "nothing"])
def test_other_names(root: Path, engine: Any, name: str) -> None:
    models = Models(root, engine)
    models.load_all()
    for ask in (models.get, models.find, models.describe):
        with pytest.raises(ProblemError, match="available: moons"):
            ask(name)


def test_model_whose_folder_cannot_be_read_is_listed_as_broken(
    root: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "gaussian" / "1").mkdir(parents=True)
    iterdir = Path.iterdir

    def refuse(self: Path) -> Any:
        if self.name == "gaussian":
            raise PermissionError(13, "Permission denied")
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    models = Models(root, engine)
    models.load_all()
    assert models.names() == ["gaussian", "moons"]
    reason = "gaussian: cannot be read: Permission denied"
    assert models.describe("gaussian")["unavailable"] == [{"version": None, "reason": reason}]
    with pytest.raises(ProblemError, match=f"model 'gaussian' cannot be served: {reason}") as caught:
        models.get("gaussian")
    assert caught.value.kind is Kind.BROKEN_MODEL
    shutil.rmtree(root / "moons")
    with pytest.raises(StartError, match=r"can be loaded: .*gaussian: cannot be read"):
        Models(root, engine).load_all()
