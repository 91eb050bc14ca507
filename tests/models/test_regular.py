import os
from pathlib import Path

import pytest

from models.regular import NotRegular, open_regular, opened_path
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
