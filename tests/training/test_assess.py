import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.architectures.analytic import Gaussian
from models.checkpoint.bound import read_report
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from selection.choice import BudgetLimits, Evidence, choose
from selection.frontier import read_frontier
from training.__main__ import main
from training.config import Recipe
from training.errors import TrainingError, UsageError
from training.fit import Options, fit
from training.measurement import evaluate_checkpoint

from ..service.free import mel, picture

pytestmark = pytest.mark.usefixtures("quick_measurements")


def test_more_steps_end_nearer_and_the_report_says_so(recipe: Recipe, options: Options, tmp_path: Path):
    folder = fit(recipe, options)
    before = load(folder).card
    solvers = ["euler-4", "euler-64", "dopri5@1e-5"]
    rows = evaluate_checkpoint(folder, solvers, 50, tmp_path / "out")
    assert [row.solver for row in rows] == solvers
    errors = [row.p95_high or 0.0 for row in rows]
    assert errors[0] > 4 * errors[1] > 4 * errors[2] > 0
    assert rows[0].nfe == 4
    assert all(row.swd is not None and row.failed == 0 for row in rows)
    after = load(folder).card
    assert after == before, "measuring a checkpoint leaves it as it is"
    report = read_report(folder, after)
    record = report["evaluation"]
    assert isinstance(record, dict)
    assert record["samples"] == 50
    assert {"quality", "report"} < report.keys()
    assert (tmp_path / "out" / "evaluation.csv").read_text().count("\n") == 4
    assert (tmp_path / "out" / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} == {
        "card.json",
        "frontier.json",
        "report.html",
        "report.json",
        "weights.safetensors",
    }
    frontier = read_frontier(folder, after)
    assert frontier is not None
    price: Any = record["price"]
    assert price["spread"] == frontier.curves[0].spread
    best = choose([Evidence(frontier.curves[0])], BudgetLimits(max_error=0.01))[0]
    assert price["cheapest"][0] == [best.point.solver, best.point.nfe_most]
    assert price["answers"][0] == best.text


def test_a_model_without_data_has_no_distance_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = save(tmp_path, "exact", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    assert main(["evaluate", str(folder), "--solver", "rk4-8", "--samples", "10", "--out", str(tmp_path / "out")]) == 0
    assert "no data to compare with" in capsys.readouterr().out
    solvers = json.loads((folder / "report.json").read_text())["parts"]["evaluation"]["solvers"]
    assert solvers[0]["swd"] is None
    assert 0 < solvers[0]["p95_high"] < 1e-3


def test_what_only_requests_know_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, folder = picture(tmp_path, tmp_path / "repository")
    mel(tmp_path, tmp_path / "repository")
    assert main(["evaluate", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert f"measure stock solvers at one: python -m models measure {folder} --shape H=N" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "repository" / "mel" / "1"), "--out", str(tmp_path / "out")]) == 1
    assert "takes conditions by name (mu), and there are no examples of them to evaluate it" in capsys.readouterr().err


def test_a_conditional_model_is_asked_with_conditions(recipe: Recipe, options: Options, tmp_path: Path):
    from training.data_config import DigitsData

    data = DigitsData(name="digits", held_out=1600, conditional=True)
    folder = fit(recipe.model_copy(update={"data": data, "condition_dropout": 0.0}), replace(options, force=True))
    assert evaluate_checkpoint(folder, ["rk4-2"], 20, tmp_path / "out")[0].failed == 0


def test_what_is_no_checkpoint_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    assert "card.json: is missing" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--samples is 1"):
        evaluate_checkpoint(tmp_path, [], 1, tmp_path)


def test_a_full_disk_leaves_the_report_as_it_was(
    recipe: Recipe, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = fit(recipe, options)
    evaluate_checkpoint(folder, ["euler-2"], 10, tmp_path / "out")
    before = (folder / "report.json").read_bytes()

    def full(path: Path, content: bytes) -> None:
        if path.name == "report.json":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("models.checkpoint.bound.write_atomically", full)
    with pytest.raises(TrainingError, match="No space left on device; nothing was changed"):
        evaluate_checkpoint(folder, ["euler-4"], 10, tmp_path / "out")
    assert (folder / "report.json").read_bytes() == before
