"""The study of cheap flows at a tiny size: the models that it trains, and the verdicts of its rules."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from studies.experiments import cheapness
from studies.experiments.cells import Cells
from studies.experiments.cheapness import changed, judge
from studies.experiments.context import Context
from studies.experiments.run import Options, run_experiments
from studies.experiments.sizes import FULL
from studies.experiments.verdicts import Verdict
from training.config import CONFIGS, load_recipe

from .test_experiments import TINY


def test_choices_change_one_thing_of_the_recipe() -> None:
    recipe = load_recipe(CONFIGS / "moons_paper.toml")
    assert changed(recipe, {}) == recipe
    assert (
        changed(recipe, {"network.hidden": 0.5}).network.model_dump()["hidden"]
        == recipe.network.model_dump()["hidden"] // 2
    )
    assert changed(recipe, {"epochs": 3}).epochs == 3 * (recipe.epochs or 0)
    assert changed(recipe, {"ema": 0.999}).ema == 0.999


@pytest.mark.parametrize("dataset", FULL.price_datasets)
def test_the_base_of_the_study_has_none_of_its_choices(dataset: str) -> None:
    base = cheapness.base_recipe(Context(FULL, None, None), dataset, 0)  # type: ignore[arg-type]
    assert (base.ema, base.schedule, base.coupling, base.times) == (0.0, "constant", "independent", "uniform")
    hashes = {changed(base, changes).hash for changes in cheapness.settings().values()}
    assert len(hashes) == len(cheapness.settings())


@pytest.mark.parametrize("dataset", FULL.price_datasets)
def test_a_reflow_takes_as_many_steps_as_its_parent(dataset: str) -> None:
    context = Context(FULL, None, None)  # type: ignore[arg-type]
    parent = cheapness.base_recipe(context, dataset, 0)
    known = {"moons": 2000, "circles": 2000, "digits": 1536, "mnist": 4000}
    seen = (parent.epochs or 0) * known[dataset]
    assert abs(cheapness._reflow_epochs(context, parent) * FULL.price_pairs - seen) <= FULL.price_pairs / 2


def test_every_choice_is_tried_on_every_data_set() -> None:
    order = cheapness.order(Context(FULL, None, None))  # type: ignore[arg-type]
    for place in itertools.product(FULL.price_datasets, FULL.training_seeds):
        names = [name for dataset, name, seed in order if (dataset, seed) == place]
        assert sorted(names) == sorted([*cheapness.settings(), "reflow"])


def test_the_study_runs_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cheapness, "FREQUENCIES", (cheapness.BASE, cheapness.PAPER))
    monkeypatch.setattr(cheapness, "CHOICES", {"OT coupling": {"coupling": "ot"}})
    sizes = dataclasses.replace(TINY, training_seeds=(0,))
    report = run_experiments(Options(out=tmp_path, sizes=sizes, study=True))
    text = report.read_text()
    assert text.startswith("# What makes a flow cheap to solve")
    assert "arXiv" not in text
    for words in ("halves what fixed steps cost", "cheaper still with: OT coupling", "cheaper still after reflow"):
        assert words in text
    assert "Cosine" not in text
    assert (report.parent / "figures" / "cheapness.png").stat().st_size > 1000
    numbers = json.loads((report.parent / "numbers" / "numbers.json").read_bytes())
    assert numbers["claims"]["cheapness/frequency"]["ours"]
    models = list((tmp_path / "tiny" / "models" / "moons").iterdir())
    assert len(models) == 4  # two frequencies, a coupling and a reflow


def _model(nfe: float, fixed: int | None, swd: float) -> dict[str, Any]:
    best = None if fixed is None else ["ab3", fixed]
    return {"dopri5_nfe": nfe, "swd": swd, "cheapest": [best, None]}


def _seeds(*models: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(seed): model for seed, model in enumerate(models)}


def test_verdicts_follow_the_numbers() -> None:
    results = {
        "moons": {
            "frequency 6": _seeds(_model(70, 10, 0.03), _model(71, 10, 0.031), _model(70, 10, 0.03)),
            "frequency 100": _seeds(_model(130, 28, 0.04), _model(131, 29, 0.041), _model(129, 28, 0.04)),
            "ema 0.999": _seeds(_model(80, 10, 0.03), _model(81, 10, 0.03), _model(80, 12, 0.03)),
        }
    }
    found = {finding.claim.key: finding.verdict for finding in judge(results)}
    assert found == {
        "frequency": Verdict.HOLDS,
        "fixed": Verdict.HOLDS,
        "quality": Verdict.HOLDS,
        "ema-0.999": Verdict.FAILS,
    }
    results["moons"]["frequency 100"] = _seeds(*[_model(130, None, 0.04)] * 3)
    assert judge(results)[1].parts[0].measured.mean == pytest.approx(10 / 200)


def test_models_of_the_same_seed_are_compared_and_one_seed_decides_nothing() -> None:
    mine = {"1": _model(70, 10, 0.03), "2": _model(60, 10, 0.03)}
    results = {"moons": {"frequency 6": mine, "frequency 100": {"0": _model(1, 1, 1), "2": _model(120, 20, 0.03)}}}
    part = judge(results)[0].parts[0]
    assert (part.measured.mean, part.measured.n, part.verdict) == (0.5, 1, Verdict.NOISE)
    assert judge({"circles": {"frequency 6": mine}}) == []


def test_a_stopped_run_reports_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cheapness, "FREQUENCIES", (cheapness.BASE, cheapness.PAPER))
    monkeypatch.setattr(cheapness, "CHOICES", {})
    options = Options(out=tmp_path, sizes=TINY, study=True, measured=True)
    assert "not measured" in run_experiments(options).read_text()
    assert not (tmp_path / "tiny" / "models").exists()
    cells = Cells(tmp_path / "tiny" / "cells" / "cheapness")
    context = Context(TINY, None, cells)  # type: ignore[arg-type]
    cheapness._cell(_numbers(context), "moons", "frequency 6", 0)
    text = run_experiments(options).read_text()
    assert "| moons | frequency 6 | 1 |" in text
    assert "frequency 100" not in text.split("Price and quality")[1]
    assert "Not measured: moons: frequency 100, reflow.\n" in text
    assert (tmp_path / "tiny" / "figures" / "cheapness.png").stat().st_size > 1000


def _numbers(context: Context) -> Context:
    """Return a context with numbers in place of measurements."""
    numbers = {**dict.fromkeys(cheapness.COLUMNS, 1.0), **_model(70, 10, 0.03)}
    cells = context.cells
    real = cells.get
    cells.get = lambda label, key, compute: real(label, key, lambda: numbers)
    return context


def test_the_decisive_settings_come_first() -> None:
    order = cheapness.order(Context(FULL, None, None))  # type: ignore[arg-type]
    assert len(order) == len(set(order))
    decisive = [name in cheapness.DECISIVE for _, name, _ in order]
    assert decisive == sorted(decisive, reverse=True)
    points = [seed for dataset, name, seed in order if name in cheapness.DECISIVE and dataset in ("moons", "circles")]
    assert points == sorted(points)
    others = [dataset in cheapness._POINTS for dataset, name, _ in order if name not in cheapness.DECISIVE]
    assert others == sorted(others, reverse=True)
    digits = [(dataset, name) for dataset, name, _ in order if dataset == "mnist" and name not in cheapness.DECISIVE]
    assert digits[0] == digits[1] == digits[2] == ("mnist", "cosine schedule")


def test_settings_that_lack_seeds_are_named() -> None:
    one, two = _seeds(_model(70, 10, 0.03)), _seeds(*[_model(70, 10, 0.03)] * 2)
    models = dict.fromkeys(cheapness.settings(), two)
    losses, text = cheapness.notes({"circles": {**models, "ema 0.999": one}})
    assert losses.startswith("Held-out losses")
    assert text == "Not measured: circles: ema 0.999 (1 of 2 seeds), reflow."
    assert cheapness.notes({"circles": {**models, "reflow": two}}) == [losses]
