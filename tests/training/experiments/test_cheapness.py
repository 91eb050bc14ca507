"""The study of cheap flows at a tiny size: what it trains, and what its rules make of numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from training.config import CONFIGS, load_recipe
from training.experiments import cheapness
from training.experiments.cheapness import changed, judge
from training.experiments.verdicts import Verdict
from training.reproduce import Options, reproduce

from .test_experiments import TINY


def test_choices_change_one_thing_of_the_recipe() -> None:
    recipe = load_recipe(CONFIGS / "moons.toml")
    assert changed(recipe, {}) == recipe
    assert (
        changed(recipe, {"network.hidden": 0.5}).network.model_dump()["hidden"]
        == recipe.network.model_dump()["hidden"] // 2
    )
    assert changed(recipe, {"epochs": 3}).epochs == 3 * recipe.epochs
    assert changed(recipe, {"ema": 0.999}).ema == 0.999
    hashes = {changed(recipe, changes).hash for changes in cheapness.settings("moons").values()}
    assert len(hashes) == len(cheapness.settings("moons"))  # frequency 100 is the paper's own


def test_the_study_runs_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cheapness, "FREQUENCIES", (cheapness.BASE, cheapness.PAPER))
    monkeypatch.setattr(cheapness, "CHOICES", {"OT coupling": {"coupling": "ot"}})
    monkeypatch.setattr(cheapness, "EVERYWHERE", ("OT coupling",))
    report = reproduce(Options(out=tmp_path, sizes=TINY, study=True))
    text = report.read_text()
    assert text.startswith("# What makes a flow cheap to solve")
    assert "arXiv" not in text
    for words in ("halves what fixed steps cost", "OT coupling makes flows cheaper", "Reflow makes flows cheaper"):
        assert words in text
    assert "Cosine" not in text
    assert (report.parent / "figures" / "cheapness.png").stat().st_size > 1000
    numbers = json.loads((report.parent / "numbers" / "numbers.json").read_bytes())
    assert numbers["claims"]["cheapness/frequency"]["ours"]
    models = list((tmp_path / "tiny" / "models" / "moons").iterdir())
    assert len(models) == 8  # two frequencies, a coupling and a reflow, with two seeds


def _model(nfe: float, fixed: int | None, swd: float) -> dict[str, Any]:
    best = None if fixed is None else ["ab3", fixed]
    return {"dopri5_nfe": nfe, "swd": swd, "cheapest": [best, None]}


def test_verdicts_follow_the_numbers() -> None:
    results = {
        "moons": {
            "frequency 6": [_model(70, 10, 0.03), _model(71, 10, 0.031), _model(70, 10, 0.03)],
            "frequency 100": [_model(130, 28, 0.04), _model(131, 29, 0.041), _model(129, 28, 0.04)],
            "ema 0.999": [_model(80, 10, 0.03), _model(81, 10, 0.03), _model(80, 12, 0.03)],
        }
    }
    found = {finding.claim.key: finding.verdict for finding in judge(results)}
    assert found == {
        "frequency": Verdict.HOLDS,
        "fixed": Verdict.HOLDS,
        "quality": Verdict.HOLDS,
        "ema-0.999": Verdict.FAILS,
    }
    results["moons"]["frequency 100"] = [_model(130, None, 0.04)] * 3
    assert judge(results)[1].parts[0].measured.mean == pytest.approx(10 / 200)
