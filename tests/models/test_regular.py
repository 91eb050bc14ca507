import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from models.checkpoint.loading import load
from models.regular import NotRegular, open_regular, opened_path, remove_stale, replacing, unfinished, write_atomically
from models.repository import Repository


def test_a_file_is_opened_also_by_the_path_of_what_is_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        (tmp_path / "file").rename(tmp_path / "moved")
        assert Path(opened_path(stream)).read_bytes() == b"content"
        assert stream.read() == b"content"


def test_what_is_no_file_is_named_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(NotRegular, match=f"is {kind}; only regular files are read"):
            open_regular(path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_a_pipe_that_takes_the_place_of_a_file_while_it_is_opened_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    monkeypatch.setattr(Path, "stat", lambda path, **_: os.stat(tmp_path / "file"))  # noqa: PTH116
    opened = len(os.listdir("/dev/fd"))  # noqa: PTH208
    with pytest.raises(NotRegular, match="named pipe"):
        open_regular(tmp_path / "pipe")
    assert len(os.listdir("/dev/fd")) == opened  # noqa: PTH208


def test_the_size_of_weights_that_are_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    os.mkfifo(folder / "weights.safetensors")
    assert Repository(folder.parent.parent).weight_bytes("moons", 1) == 0


def test_whole_files_are_replaced_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"long content", b"short"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_two_writers_of_one_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, both, flush = tmp_path / "file", Barrier(2, timeout=60), os.fsync
    contents = [b"a" * 100_000, b"b" * 50_000]

    def meet(handle: int) -> None:
        if os.path.isfile(f"/dev/fd/{handle}"):  # noqa: PTH113  (not the folder)
            both.wait()
        flush(handle)

    monkeypatch.setattr(os, "fsync", meet)
    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(lambda content: write_atomically(path, content), contents):
            pass
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def refuse(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def _die_while_writing(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"half of it")
        file.flush()
        os._exit(9)


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    for mode in (0o600, 0o640):
        path.touch()
        path.chmod(mode)
        write_atomically(path, b"new")
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)


def test_what_a_killed_writer_leaves_is_no_model_and_is_removed_once_old(folder: Path) -> None:
    card, root = folder / "card.json", folder.parent.parent
    for path in (card, root / "moons", root / "card.json"):
        process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(path,))
        process.start()
        process.join(60)
        assert process.exitcode == 9
    (left,) = unfinished(card)
    assert left.read_bytes() == b"half of it"
    repository = Repository(root)
    assert (repository.names(), repository.versions("moons"), repository.passed_over()) == (["moons"], [1], [])
    assert load(folder).card.name == "moons"
    remove_stale(unfinished(card))
    assert left.exists()
    two_hours_ago = time.time() - 7200
    os.utime(left, (two_hours_ago, two_hours_ago))
    write_atomically(card, card.read_bytes())
    assert not left.exists()
    assert load(folder).card.name == "moons"
