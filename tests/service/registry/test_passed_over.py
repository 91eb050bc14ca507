"""Repository entries that are not models are named: in the log, at /v1/models, and if there is no model."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.__main__ import main
from service.registry.registry import MAX_PASSED_OVER
from service.responses.schemas import ModelListBody
from service.settings import Settings, StartError
from tests.service.registry.asking import registry_of
from tests.service.serving import conforming


def _fill(root: Path, outside: Path) -> None:
    """Add entries that people typically leave there."""
    for folder in ("my model/1", "rings/v2", "rings/01", "flat", os.fsdecode(b"\xff\xfe")):
        (root / folder).mkdir(parents=True)
    (root / "my\nmodel").mkdir()
    (root / "README.md").write_text("")
    (root / ".hidden").mkdir()
    (root / "linked").symlink_to(outside)
    (root / "lost").symlink_to(outside / "nowhere")


EXPECTED = {
    "my model": "not a valid model name",
    "'my\\nmodel'": "not a valid model name",
    "'\\udcff\\udcfe'": "not a valid model name",
    "rings": "has no version",
    "rings/v2": "not a version; use a whole number from 1",
    "rings/01": "not a version; use a whole number from 1",
    "flat": "has no version",
    "README.md": "a file",
    "linked": "leads out of the repository; copy the folder here instead",
    "lost": "a broken link",
}


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    root = tmp_path / "checkpoints"
    root.mkdir()
    _fill(root, repository / "moons")
    return root


@pytest.fixture
def settings(root: Path, repository: Path) -> Settings:
    shutil.copytree(repository / "moons", root / "moons")
    return Settings(models_dir=root, watch_s=0)


@pytest.mark.anyio
async def test_the_list_names_it(running: Any, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    answer = await running.http.get("/v1/models")
    found = conforming(ModelListBody, answer.json())
    reasons = {entry["path"]: entry["reason"] for entry in found["passed_over"]}
    assert reasons.keys() == EXPECTED.keys()
    assert found["more_passed_over"] == 0
    for path, reason in EXPECTED.items():
        assert reasons[path].startswith("passed over: ")
        assert reason in reasons[path]
    assert str(root.parent) not in answer.text
    messages = [record.getMessage() for record in caplog.get_records("setup") if "passed over" in record.getMessage()]
    assert sorted(messages) == sorted(f"{path}: {reason}" for path, reason in reasons.items())
    with caplog.at_level(logging.INFO):
        running.service.registry.refresh()
        assert not caplog.records  # logged once
        (root / "other model").mkdir()
        shutil.rmtree(root / "my model")
        running.service.registry.refresh()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["other model"]
    paths = [each["path"] for each in (await running.http.get("/v1/models")).json()["passed_over"]]
    assert ("other model" in paths, "my model" in paths) == (True, False)


@pytest.mark.anyio
async def test_it_is_bounded(running: Any, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(300):
        (root / f"my model {number}").mkdir()
    running.service.registry.refresh()
    answer = (await running.http.get("/v1/models")).json()
    assert len(answer["passed_over"]) == MAX_PASSED_OVER
    assert answer["more_passed_over"] == 300 + len(EXPECTED) - MAX_PASSED_OVER
    assert len(caplog.records) == MAX_PASSED_OVER + 1
    assert "250 more are passed over" in caplog.text


def test_a_repository_with_no_model_is_not_called_empty(root: Path, engine: Any) -> None:
    with pytest.raises(StartError) as caught:
        registry_of(root, engine).load_all()
    messages = str(caught.value)
    assert "is empty" not in messages
    assert "\n" not in messages
    assert "has no model: " in messages
    assert "linked: passed over: leads out of the repository; copy the folder here instead" in messages
    assert messages.endswith(f"and {len(EXPECTED) - 5} more")


@pytest.mark.parametrize("command", ["list", "check"])
def test_the_command_line_names_the_same(root: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    main([command, "--models-dir", str(root)])
    lines = [line for line in capsys.readouterr().out.splitlines() if "passed over" in line]
    assert len(lines) == len(EXPECTED)
