"""`python -m studies.tuned`: one table for all checkpoints, and recipes that are trained and tuned first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from studies import tuned
from training import tune as command
from training.tune import TuningOptions, tune

QUICK = TuningOptions(nfe=(2, 3), methods=("ab2",), samples=16, iterations=2, guidance=(1.0, 2.0))


@pytest.fixture(autouse=True)
def _few_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "VALIDATED", 16)


def saved(root: Path, seed: int, condition: NamedCondition | None = None) -> Path:
    torch.manual_seed(seed)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, condition=condition))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    about: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": seed}
    return save(root, "small", network, Decoder.identity((2,)), **about)


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["studies.tuned", "--samples", "16", *arguments])
    capsys.readouterr()
    tuned.main()
    return capsys.readouterr().out.strip().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_checkpoints_are_rows_by_nfe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [saved(tmp_path, seed) for seed in (0, 1)]
    for folder in folders:
        tune(folder, QUICK)
    head, _, *rows, _, first, second = printed(monkeypatch, capsys, *map(str, folders))
    found = [dict(zip(cells(head), cells(row), strict=True)) for row in rows]
    assert [(row["model"], row["NFE"]) for row in found] == [
        ("small, seed 0", "2"),
        ("small, seed 1", "2"),
        ("small, seed 0", "3"),
        ("small, seed 1", "3"),
    ]
    assert all(row["`rk4`"].endswith(" (4)") for row in found)  # a step has four calls
    assert all(row["best tuned grid"].endswith("(`ab2`)") for row in found)
    assert all(float(row["learned"]) <= float(row["`ab2`"]) for row in found)
    assert [bool(row["learned for the first"]) for row in found] == [False, True, False, True]
    assert first.startswith("small, seed 0: euler-200 is off by 0.0")
    assert second.startswith("small, seed 1: ")


def test_guidance_has_rows_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 0, NamedCondition.label(classes=3))
    tune(folder, QUICK)
    _, _, *rows, _, first, second = printed(monkeypatch, capsys, str(folder), "--guidance", "1,4")
    assert [cells(row)[0] for row in rows[:2]] == [
        "small, seed 0, guidance 1, tuned for 1, 2",
        "small, seed 0, guidance 4, tuned for 1, 2",
    ]
    assert first != second


def test_a_recipe_is_trained_with_each_seed_and_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[Any] = []

    def fit(recipe: Any, options: Any) -> Path:
        trained.append((recipe.name, recipe.seed, recipe.network.max_frequency, options.models_dir))
        return saved(tmp_path, recipe.seed)

    monkeypatch.setattr(tuned, "fit", fit)
    arguments = ["--recipe", "moons", "--seeds", "0,1", "--nfe", "2", "--methods", "ab2", "--calibration", "16"]
    out = printed(monkeypatch, capsys, *arguments, "--out", str(tmp_path))
    rows = [line for line in out if line.startswith("| small")]
    assert [cells(row)[:2] for row in rows] == [["small, seed 0", "2"], ["small, seed 1", "2"]]
    assert trained == [(f"moons-seed-{seed}", seed, 6.0, tmp_path / "models") for seed in (0, 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name checkpoints, or a shipped recipe"),
        (("none",), "card.json"),
        (("--recipe", "none"), "none.toml"),
        (("none", "--samples", "15"), "--samples is 15; it must be at least 16"),
        (("--recipe", "moons", "--euler", "none-3"), "unknown solver 'none'; use one of euler"),
        (("--recipe", "moons", "--guidance", "strong"), "--guidance is 'strong'; use numbers"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        printed(monkeypatch, capsys, *arguments)
    assert words in capsys.readouterr().err


def test_a_checkpoint_without_tuned_solvers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 0)
    with pytest.raises(SystemExit):
        printed(monkeypatch, capsys, str(folder))
    assert f"{folder}: has no tuned solvers; make some with python -m training tune {folder}" in capsys.readouterr().err
    (folder / "plans.json").write_text("{")
    with pytest.raises(SystemExit):
        printed(monkeypatch, capsys, str(folder))
    assert "plans.json: " in capsys.readouterr().err
