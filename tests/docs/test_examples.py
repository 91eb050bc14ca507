"""Every Python block in the docs runs as it stands; the solver table is the catalogue."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from service import reference
from service.settings import load_settings
from solvers import catalogue
from solvers.__main__ import table

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    code = "\n".join(blocks(page))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


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
