"""A disk that fills up, simulated by a limit on the size of files, which cuts a write short in the same way."""

import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.loading import load
from training import fit as module
from training.config import Recipe
from training.errors import StateError, TrainingError
from training.fit import Options, fit
from training.state import RunFolder

_ROOM = 1000  # bytes, less than any state or weights here


@pytest.fixture
def disk() -> Iterator[Any]:
    """Return a function: True fills the disk, False makes room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(full: bool) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM if full else soft, hard))

    yield fill
    fill(False)


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def test_full_while_training_keeps_the_last_state_and_every_version(
    recipe: Recipe, options: Options, disk: Any, monkeypatch: pytest.MonkeyPatch
):
    first = fit(recipe, options)
    kept = weights(first)
    write, writes = RunFolder.write, []

    def filling(self: RunFolder, *state: Any) -> None:
        writes.append(state[1].step)
        disk(len(writes) == 6)
        write(self, *state)

    again = replace(options, force=True, save_every=0.0)
    monkeypatch.setattr(RunFolder, "write", filling)
    with pytest.raises(StateError) as error:
        fit(recipe, again)
    disk(False)
    text = str(error.value)
    assert "state.safetensors cannot be written: File too large; the last state written is kept. Make room" in text
    assert text.count("kept") == 1
    (run,) = options.runs_dir.iterdir()
    state = RunFolder(run).read()
    assert state is not None
    assert state[1].step == writes[-2] == 5
    assert not list(run.glob(".*.part"))
    assert [path.name for path in first.parent.iterdir()] == ["1"]
    monkeypatch.undo()
    assert weights(fit(recipe, again)) == kept == weights(first)


def test_full_when_publishing_keeps_what_was_trained(
    recipe: Recipe, options: Options, disk: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    first = fit(recipe, options)
    save = module.save

    def filling(*arguments: Any, **named: Any) -> Path:
        disk(True)
        return save(*arguments, **named)

    monkeypatch.setattr(module, "save", filling)
    with pytest.raises(TrainingError, match="File too large; nothing was saved; the trained state is kept, run the"):
        fit(recipe, replace(options, force=True))
    disk(False)
    assert [path.name for path in options.models_dir.iterdir()] == ["tiny"]
    assert [path.name for path in first.parent.iterdir()] == ["1"]
    load(first)
    monkeypatch.undo()
    capsys.readouterr()
    second = fit(recipe, replace(options, force=True))
    assert "resuming at step 16 of 16" in capsys.readouterr().out
    assert weights(second) == weights(first)
