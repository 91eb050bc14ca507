"""Every Python block in the docs runs as it stands."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pathline
import pathline.cli
import pytest

import training.__main__
from service.settings import load_settings
from tests.docs.conftest import ROOT, Programs, blocks


def run_python(code: str, service: str, folder: Path) -> None:
    """Run code in a separate process, as a user in `folder` would."""
    environment = {**os.environ, "PATHLINE_URL": service, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_python_blocks_run(programs: Programs) -> None:
    assert not programs.failures, "\n".join(programs.failures.values())
    assert {"solvers.md", "reproduce.md", "README 0", "notebook"} <= programs.printed.keys()


# The slow parts of the tutorial's commands, in order, and their replacements.
_QUICK = {
    "fit": ["--epochs", "1", "--seconds", "0"],
    "compare": ["--solvers", "euler-10,rk4-5", "-n", "128"],
    "bench": ["--duration", "0.3"],
}


def test_the_tutorial_can_be_followed(
    service: str, models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATHLINE_URL", service)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(models_dir))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tutorial.md").read_text()
    called = []
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            run_python(block, service, tmp_path)
            continue
        for line in block.splitlines():
            program, *command = shlex.split(line)
            if program == "make":
                assert command == ["serve"]
            elif program == ".venv/bin/pathline":
                called.append(command[0])
                if command[0] == "models":
                    until_served("spiral", service)
                assert pathline.cli.main([*command, *_QUICK.get(command[0], [])]) == 0, capsys.readouterr().err
            else:
                assert [program, *command[:2]] == [".venv/bin/python", "-m", "training"]
                called.append(command[2])
                assert training.__main__.main([*command[2:], *_QUICK[command[2]]]) == 0, capsys.readouterr().err
    assert called == ["fit", "models", "compare", "sample", "sample", "bench"]
    assert {path.name for path in tmp_path.iterdir()} >= {"spiral.csv", "spiral.png", "spiral.npz"}


def until_served(name: str, service: str) -> None:
    """Wait until the service has found a model that was just saved."""
    with pathline.Client(service) as client:
        for _ in range(600):
            if name in {model.name for model in client.models() if model["status"] == "served"}:
                return
            time.sleep(0.1)
    pytest.fail(f"the service does not find {name}")


def test_what_the_tutorial_shows_is_what_its_commands_say() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    [found] = re.findall(r"^draw with it: pathline sample spiral (.*)$", text, re.MULTILINE)
    drawn = re.findall(r"^\.venv/bin/pathline (?:sample|bench) spiral .*$", text, re.MULTILINE)
    assert len(drawn) == 3
    assert all(found in command for command in drawn)
    assert f'solver="{found.removeprefix("--solver ")}"' in text


def test_the_settings_file_of_the_docs_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs" / "settings.md", "toml")
    (tmp_path / "settings.toml").write_text(block)
    monkeypatch.setenv("PATHLINE_SETTINGS", str(tmp_path / "settings.toml"))
    settings = load_settings()
    assert (settings.port, len(settings.api_keys)) == (9000, 2)


def test_the_notebook_prints_and_saves(programs: Programs) -> None:
    assert "dopri5@1e-5" in programs.printed["notebook"]
    assert "measured solver" in programs.printed["notebook"]
    with np.load(programs.folder / "moons.npz") as saved:
        assert saved["samples"].shape == (2000, 2)
