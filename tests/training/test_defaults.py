import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.repository import Repository
from selection.frontier import read_frontier
from training import defaults
from training.__main__ import main
from training.defaults import make_defaults
from training.folders import make_writable, training_mark


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped recipes cut to one epoch."""
    for name in defaults.TRAINED:
        text = (defaults.CONFIGS / f"{name}.toml").read_text()
        lines = ["epochs = 1" if line.startswith("epochs") else line for line in text.splitlines()]
        (tmp_path / f"{name}.toml").write_text("\n".join(lines))
    monkeypatch.setattr(defaults, "CONFIGS", tmp_path)
    monkeypatch.setattr(defaults, "MEASURE_S", 1e-9)
    monkeypatch.setattr(defaults, "MEASURE_TO", 0.2)
    monkeypatch.setattr("selection.measure._SAMPLES", 8)


@pytest.mark.usefixtures("quick")
def test_makes_all_then_nothing_then_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    models, runs = tmp_path / "models", tmp_path / "runs"
    make_defaults(models, runs, "cpu")
    assert sorted(path.name for path in models.iterdir()) == ["digits", "gaussian", "mixture", "moons"]
    shapes = {name: load(models / name / "1").card.data_shape for name in ("moons", "digits", "gaussian", "mixture")}
    assert shapes == {"moons": (2,), "digits": (8, 8), "gaussian": (2,), "mixture": (2,)}
    assert load(models / "gaussian" / "1").dtype == torch.float64
    for name in shapes:
        frontier = read_frontier(models / name / "1", read_card(models / name / "1"))
        assert frontier is not None
        assert frontier.curves[0].points[0].nfe == 1
        assert not frontier.curves[0].complete
        assert min(point.p95_high for point in frontier.curves[0].points) <= 0.2  # however slow the machine is

    capsys.readouterr()
    make_defaults(models, runs, "cpu")
    assert "nothing to do" in capsys.readouterr().out

    (models / "mixture" / "1" / "card.json").unlink()  # no version without a card
    make_defaults(models, runs, "cpu")
    out = capsys.readouterr().out
    assert "lacks mixture;" in out
    assert [path.name for path in (models / "moons").iterdir()] == ["1"]


def test_a_full_repository_is_seen_without_importing_torch(tmp_path: Path):
    for name in (*defaults.ANALYTIC, *defaults.TRAINED):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "card.json").touch()
        (tmp_path / name / "1" / "frontier.json").touch()
    script = (
        "import sys; from training.__main__ import main\n"
        "assert main(['defaults', '--models-dir', sys.argv[1]]) == 0\n"
        "assert not {'torch', 'sklearn', 'scipy'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("quick")
def test_a_command_runs_at_once_and_the_missing_models_are_trained_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    started: list[list[str]] = []

    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setattr(defaults.os, "execvp", become)
    places = ["--models-dir", str(tmp_path / "models"), "--runs-dir", str(tmp_path / "runs"), "--device", "cpu"]
    assert main(["defaults", *places, "--then", "serve", "--port", "1"]) == 1
    assert "serve cannot be run: No such file" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["gaussian", "mixture"]
    assert started == [[sys.executable, "-m", "training", "defaults", *places]]


def become(program: str, command: list[str]) -> None:
    assert (program, command) == ("serve", ["serve", "--port", "1"])
    raise FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize("fault", ["models", "runs", "log"])
def test_the_command_runs_even_if_no_models_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
):
    monkeypatch.setattr(defaults.os, "execvp", become)
    monkeypatch.setattr(defaults, "write_analytic", make_writable_models)
    (tmp_path / "file").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "defaults.log").symlink_to("/dev/full")
    models = tmp_path / ("file" if fault == "models" else ".") / "models"
    runs = tmp_path / ("file" if fault == "runs" else ".") / "runs"
    command = ["defaults", "--models-dir", str(models), "--runs-dir", str(runs), "--then", "serve", "--port", "1"]
    assert main(command) == 1
    why, end = capsys.readouterr().err.splitlines()
    words = {"models": "Not a directory", "runs": "Not a directory", "log": "No space left on device"}
    assert f"{words[fault]}; no models are made" in why
    assert "serve cannot be run" in end, "it was tried"


def make_writable_models(models_dir: Path) -> None:
    make_writable(models_dir, "model folder")


def test_what_stays_behind_ends_with_its_parent():
    script = (
        "import subprocess; from training.defaults import stay_behind\n"
        "print(subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL, preexec_fn=stay_behind).pid)\n"
    )
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    until = time.monotonic() + 60
    while running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether a process runs: one that nobody waited for has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_training_is_seen_in_the_repository_while_its_process_lives(tmp_path: Path):
    repository = Repository(tmp_path)
    with training_mark(tmp_path, "moons") as mark:
        assert repository.training() == [("moons", None)]
        mark(41.5)
        assert repository.training() == [("moons", 41.5)]
        (tmp_path / ".training" / "dead.json").write_text('{"left_s": 3.0}')
        assert repository.training() == [("moons", 41.5)], "nobody holds the lock of the other"
    assert repository.training() == []
    assert repository.passed_over() == []
