from pathlib import Path

import pytest
import torch

from tests.processes import forked
from training.errors import StateError
from training.folders import make_writable
from training.state import Header, RunFolder

HEADER = Header(recipe="abc", data="d", step=7, loss_sum=0.1, last_loss=None, seconds=1.5, threads=1, device="cpu")


def test_what_is_written_is_read(tmp_path: Path):
    run = RunFolder(tmp_path)
    assert run.read() is None
    tensors = {"a": torch.randn(3, 2), "step": torch.tensor(7.0)}
    run.write(tensors, HEADER)
    found = run.read()
    assert found is not None
    assert found[1] == HEADER
    assert all(torch.equal(found[0][name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("keep", [0, 7, 60, -1])
def test_a_damaged_state_is_named_with_the_way_out(tmp_path: Path, keep: int):
    run = RunFolder(tmp_path)
    run.write({"a": torch.zeros(50)}, HEADER)
    run.file.write_bytes(run.file.read_bytes()[:keep])
    with pytest.raises(StateError, match=r"is damaged.*delete") as caught:
        run.read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [12, 60, 200, -1600, -800, -4])
def test_four_damaged_bytes_anywhere_are_noticed(tmp_path: Path, place: int):
    run = RunFolder(tmp_path)
    run.write({"weights.a": torch.randn(100), "adam.m": torch.randn(20, 10), "adam.step": torch.tensor(7.0)}, HEADER)
    content = bytearray(run.file.read_bytes())
    start = place % len(content)
    content[start : start + 4] = bytes(byte ^ 0x11 for byte in content[start : start + 4])
    run.file.write_bytes(content)
    with pytest.raises(StateError, match=r"is damaged .*restore a copy of it, or delete .* to train from the start"):
        run.read()


def test_a_safetensors_file_of_another_kind_is_no_state(tmp_path: Path):
    from safetensors.torch import save

    run = RunFolder(tmp_path)
    run.file.write_bytes(save({"a": torch.zeros(2)}))
    with pytest.raises(StateError, match="damaged"):
        run.read()


def test_a_failed_write_keeps_the_old_state_and_leaves_nothing_behind(tmp_path: Path):
    # A limit on the size of files fails a write half-way, like a full disk.
    script = """
import resource, sys, torch
from pathlib import Path
from training.state import Header, RunFolder
run, header = RunFolder(Path(sys.argv[1])), Header.model_validate_json(sys.argv[2])
run.write({"a": torch.zeros(10)}, header)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
run.write({"a": torch.zeros(10_000)}, header.model_copy(update={"step": 8}))
"""
    _, output = forked(script, str(tmp_path), HEADER.model_dump_json())
    assert "cannot be written: File too large; the last state written is kept" in output
    found = RunFolder(tmp_path).read()
    assert found is not None
    assert found[1].step == 7
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_run_in_work_is_locked_for_others_and_free_afterwards(tmp_path: Path):
    run = RunFolder(tmp_path / "run")
    with run.locked(), pytest.raises(StateError, match="another process is training"), RunFolder(run.folder).locked():
        pass
    with run.locked():
        run.remove()
    assert not run.folder.exists()


def test_a_state_that_a_killed_process_was_writing_is_removed(tmp_path: Path):
    run = RunFolder(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / ".state.safetensors.0123.part").write_bytes(b"half")
    with run.locked():
        assert [path.name for path in run.folder.iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    from training.errors import TrainingError

    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"model folder .*file/models cannot be written to: Not a directory"):
        make_writable(tmp_path / "file" / "models", "model folder")
