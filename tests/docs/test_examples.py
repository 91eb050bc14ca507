"""Every Python block in the docs runs as it stands; the solver table is the catalogue."""

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pathline.cli
import pytest

import models.__main__
import training.__main__
from service import reference
from service.settings import load_settings
from solvers import catalogue
from solvers.__main__ import table

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, service: str) -> None:
    code = "\n".join(blocks(page))
    environment = {**os.environ, "PATHLINE_URL": service}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def commands(program: str) -> list[list[str]]:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    return [shlex.split(line) for line in re.findall(rf"^\.venv/bin/{program} (.*)$", text, re.MULTILINE)]


def test_the_commands_of_the_tutorial_run(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_URL", service)
    monkeypatch.chdir(tmp_path)
    found = commands("pathline")
    assert {command[0] for command in found} == {"models", "compare", "sample", "bench"}
    for command in found:
        command = ["0.3" if before == "--duration" else word for before, word in pairwise(["", *command])]
        assert pathline.cli.main(command) == 0, command
    assert {path.name for path in tmp_path.iterdir()} == {"circles.png", "circles.npz"}


def test_the_other_commands_of_the_tutorial_are_understood(tmp_path: Path) -> None:
    [fit, *others] = [command[1:] for command in commands("python") if command[0] == "-m"]
    assert training.__main__._parser().parse_args(fit[1:]).dataset == "circles"
    assert [name for name, *_ in others] == ["models", "models"]
    for _, *command in others:
        assert models.__main__.main([*command, "--models-dir", str(tmp_path)]) == 0


def test_the_solver_table_is_the_catalogue() -> None:
    assert set(catalogue.solvers()) >= {"euler", "midpoint", "rk4", "dopri5"}
    assert table() in (ROOT / "docs" / "solvers.md").read_text()


def test_the_settings_table_is_the_settings() -> None:
    assert reference.table() in (ROOT / "docs" / "settings.md").read_text()


def test_the_settings_file_of_the_docs_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs" / "settings.md", "toml")
    (tmp_path / "settings.toml").write_text(block)
    monkeypatch.setenv("PATHLINE_SETTINGS", str(tmp_path / "settings.toml"))
    settings = load_settings()
    assert (settings.port, len(settings.api_keys)) == (9000, 2)
