import importlib.util
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.__main__ import main
from training.config import Recipe
from training.fit import Options, fit
from training.progress import Board

pytestmark = pytest.mark.usefixtures("quick_measurements")


def read(folder: Path) -> EventAccumulator:
    (run,) = folder.iterdir()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return events


def test_logs_hold_every_epoch_and_the_quality(recipe: Recipe, options: Options, tmp_path: Path):
    recipe = recipe.model_copy(update={"schedule": "cosine"})
    fit(recipe, replace(options, tensorboard=tmp_path / "logs", seconds=100))
    events = read(tmp_path / "logs")
    losses = events.Scalars("loss/training")
    assert [event.step for event in losses] == [4, 8, 12, 16]
    assert all(event.value > 0 for event in losses)
    assert [event.step for event in events.Scalars("loss/held_out")] == [4, 8, 12, 16]
    assert len([tag for tag in events.Tags()["scalars"] if tag.startswith("loss_by_time/")]) == 10
    rates = [event.value for event in events.Scalars("learning_rate")]
    assert rates == sorted(rates, reverse=True)
    assert [event.step for event in events.Scalars("quality/swd")] == [16]


def test_a_run_that_goes_on_hides_what_came_after_its_state(tmp_path: Path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "run")) as before:
        for step in (4, 8, 12):
            before.add_scalar("quality/swd", 1.0, step)
    with closing(Board(tmp_path / "run", 8)) as board:
        board.log({"quality/swd": 2.0}, 12)
    found = [(event.step, event.value) for event in read(tmp_path).Scalars("quality/swd")]
    assert found == [(4, 1.0), (8, 1.0), (12, 2.0)]


def test_logs_that_cannot_be_written_do_not_end_the_training(
    recipe: Recipe,
    options: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    assert fit(recipe, replace(options, tensorboard=tmp_path / "logs")).name == "1"
    assert capsys.readouterr().err.count("end here: No space left on device") == 1


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    places = ["--models-dir", str(tmp_path / "models"), "--runs-dir", str(tmp_path / "runs")]
    assert main(["fit", "moons", "--tensorboard", str(tmp_path / "logs"), *places]) == 2
    assert "run pip install -c constraints.txt -e '.[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
