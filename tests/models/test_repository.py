import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.repository import Repository, RepositoryError, UnknownModel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("moons/1", "moons/2", "moons/10", "rings/3", ".tmp-moons-ab/1", "empty", "notes/draft", "bad name/1"):
        (tmp_path / "root" / path).mkdir(parents=True)
    for name in ("02", "0", "-1", "1.5", "11x", "\N{ARABIC-INDIC DIGIT ONE}"):
        (tmp_path / "root" / "moons" / name).mkdir()
    (tmp_path / "root" / "moons" / "12").write_text("a file is no version")
    (tmp_path / "root" / "README").write_text("")
    (tmp_path / "secret" / "1").mkdir(parents=True)
    return tmp_path / "root"


def test_names_and_versions(root: Path) -> None:
    repository = Repository(root)
    assert repository.names() == ["moons", "rings"]
    assert repository.versions("moons") == [1, 2, 10]
    assert repository.resolve("moons") == root / "moons" / "10"
    assert repository.resolve("moons", 2) == root / "moons" / "2"


def test_what_is_added_is_seen_at_once(root: Path) -> None:
    repository = Repository(root)
    (root / "moons" / "11").mkdir()
    assert repository.resolve("moons").name == "11"


@pytest.mark.parametrize(
    "name", ["squares", "", ".", "..", "../secret", "moons/1", "/etc", "moons\x00", ".tmp-moons-ab", "empty", "moons\n"]
)
def test_an_unknown_model_lists_the_known_ones(root: Path, name: str) -> None:
    with pytest.raises(UnknownModel, match=r"known models are moons, rings$") as caught:
        Repository(root).resolve(name)
    assert repr(name) in str(caught.value)
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("version", [0, 3, -1, 12, 10**30])
def test_an_unknown_version_lists_the_known_ones(root: Path, version: int) -> None:
    with pytest.raises(UnknownModel, match=rf"version is {version}; model 'moons' has 1, 2, 10$"):
        Repository(root).resolve("moons", version)


def test_links_out_of_the_root_are_not_followed(root: Path) -> None:
    (root / "leak").symlink_to(root.parent / "secret")
    (root / "rings" / "4").symlink_to(root.parent / "secret" / "1")
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(root / "nowhere")
    assert Repository(root).names() == ["moons", "rings"]
    assert Repository(root).versions("rings") == [3]
    with pytest.raises(UnknownModel):
        Repository(root).resolve("leak")


def test_links_within_the_root_and_to_the_root_work(root: Path) -> None:
    (root / "alias").symlink_to(root / "moons")
    (root.parent / "current").symlink_to(root)
    assert Repository(root.parent / "current").resolve("alias", 1).is_dir()


def test_a_missing_or_unusable_root_is_a_repository_error(root: Path) -> None:
    for path, named in [(root / "nowhere", "does not exist"), (root / "README", "is not a folder")]:
        for call in (Repository(path).names, lambda path=path: Repository(path).resolve("moons")):
            with pytest.raises(RepositoryError, match=f"{path}: {named}"):
                call()


def test_an_unreadable_root_is_a_repository_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Path) -> None:  # a folder's mode does not stop tests that run as root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(RepositoryError, match="cannot be read: Permission denied"):
        Repository(root).names()


def test_pickles_are_found_wherever_a_model_could_be(root: Path) -> None:
    paths = [root / "a.pt", root / "moons" / "b.pkl", root / "moons" / "1" / "c.PTH"]
    for path in paths:
        path.write_bytes(b"")
    assert Repository(root).pickles() == sorted(paths)


def test_a_model_that_cannot_be_read_is_not_taken_for_absent(root: Path, close: Callable[[Path], None]) -> None:
    close(root / "moons")
    repository = Repository(root)
    assert repository.names() == ["moons", "rings"]
    with pytest.raises(RepositoryError, match=f"^{root}/moons: cannot be read: Permission denied$"):
        repository.resolve("moons")
    assert repository.resolve("rings").name == "3"


def test_what_is_passed_over_has_a_reason(root: Path) -> None:
    (root / "leak").symlink_to(root.parent / "secret")
    (root / "moons" / "9").symlink_to(root.parent / "secret" / "1")
    (root / "moons" / "13").symlink_to(root / "nowhere")
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "loop").symlink_to(root / "loop")
    (root / ".hidden").mkdir()
    (root / "lost+found").mkdir()  # of a file system
    (root / "rings" / ("9" * 19)).mkdir()
    found = {str(path.relative_to(root)): why for path, why in Repository(root).passed_over()}
    odd = ("moons/-1", "moons/0", "moons/02", "moons/1.5", "moons/11x", "moons/\u0661", f"rings/{'9' * 19}")
    assert {name for name, why in found.items() if "not a version" in why} == {*odd, "notes/draft"}
    assert {name for name, why in found.items() if "has no version" in why} == {"empty", "notes"}
    assert {name for name, why in found.items() if "leads out" in why} == {"leak", "moons/9"}
    assert {name for name, why in found.items() if "not a valid model name" in why} == {"bad name"}
    assert {name for name, why in found.items() if "broken link" in why} == {"dangling", "loop", "moons/13"}
    assert {name for name, why in found.items() if "a file" in why} == {"README", "moons/12"}
    assert len(found) == 8 + 2 + 2 + 1 + 3 + 2  # and nothing else


def test_a_path_is_one_line_of_text(root: Path) -> None:
    repository = Repository(root)
    assert repository.within(root / "moons" / "v2") == "moons/v2"
    assert repository.within(root / "my\nmodel") == "'my\\nmodel'"
    assert repository.within(root / os.fsdecode(b"\xff")) == "'\\udcff'"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_seen_now_is_not_taken_for_absent(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (root / "rings" / "3" / "card.json").write_text("")
    stat = Path.stat

    def refuse(self: Path, **named: Any) -> Any:
        if self.is_relative_to(root / "rings"):
            raise OSError(number, os.strerror(number))
        return stat(self, **named)

    monkeypatch.setattr(Path, "stat", refuse)
    repository = Repository(root)
    assert repository.names() == ["moons", "rings"]
    assert repository.versions("rings") == [3]
    with pytest.raises(RepositoryError, match=f"card.json: cannot be read: {os.strerror(number)}"):
        repository.signature("rings", 3)
