import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.__main__ import main
from training.by_class import evaluate_by_class
from training.config import Recipe
from training.data_config import DigitsData, VectorsData
from training.errors import TrainingError, UsageError
from training.fit import Options, fit


@pytest.fixture
def clusters(recipe: Recipe, options: Options, tmp_path: Path) -> Path:
    """A model of three clusters by class, trained well enough to tell them apart."""
    source = np.random.default_rng(0)
    labels = np.arange(240) % 3
    middles = np.array([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]])
    np.savez(tmp_path / "rows.npz", x=middles[labels] + 0.3 * source.normal(size=(240, 2)), kind=labels)
    data = VectorsData(name="vectors", path=str(tmp_path / "rows.npz"), columns=["x"], label="kind", held_out=0.3)
    network = recipe.network.model_copy(update={"hidden": 32})
    changed = {"data": data, "network": network, "epochs": 60, "learning_rate": 5e-3, "batch_size": 64}
    return fit(recipe.model_copy(update=changed), options)


def test_samples_of_a_class_read_as_it_and_a_wrong_model_would_not(
    clusters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    arguments = ["evaluate", str(clusters), "--by-class", "--solver", "rk4-8", "--samples", "60", "--out", str(out)]
    assert main([*arguments, "--guidance", "1", "--guidance", "2"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads((clusters / "report.json").read_bytes())["parts"]["by_class"]["rows"]
    real, noise, free, plain, guided = rows
    assert [row["samples"] for row in rows] == [
        "real data", "noise like the data", "rk4-8, no condition", "rk4-8, guidance 1", "rk4-8, guidance 2",
    ]  # fmt: skip
    assert real["agreement"] == 1.0
    assert real["count"] == 72
    assert noise["agreement"] is None
    assert free["agreement"] is None
    assert all(share > 0.1 for share in free["taken_for"])
    for row in (plain, guided):
        assert row["agreement"] > 0.9
        assert row["nfe"] == 32
        assert row["taken_for"] == pytest.approx([1 / 3] * 3, abs=0.1)
    assert "own class" in printed
    assert "rk4-8, guidance 2" in printed
    assert {file.name for file in out.iterdir()} == {"by-class.csv"}, "rows of numbers have no sheet"


def test_labels_that_were_learned_crosswise_are_seen(clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The measurement must not be one that every model would pass."""
    from training import by_class

    def crosswise(checkpoint: object, data_dir: Path | None) -> tuple[object, str]:
        data, note = whole(checkpoint, data_dir)  # type: ignore[arg-type]
        assert data is not None
        assert data.conditions is not None
        assert data.reference_conditions is not None
        turned = {"conditions": (data.conditions + 1) % 3, "reference_conditions": (data.reference_conditions + 1) % 3}
        return replace(data, **turned), note

    whole = by_class.data_of
    monkeypatch.setattr(by_class, "data_of", crosswise)
    rows = evaluate_by_class(clusters, ["rk4-8"], [1.0], 30, tmp_path / "out")
    assert rows[0].agreement == 1.0
    assert rows[-1].agreement == pytest.approx(0.0, abs=0.1)


def test_pictures_have_a_sheet_and_a_model_without_null_has_guidance_one_only(
    recipe: Recipe, options: Options, tmp_path: Path
):
    data = DigitsData(name="digits", held_out=1600, conditional=True)
    folder = fit(recipe.model_copy(update={"data": data, "condition_dropout": 0.0}), options)
    rows = evaluate_by_class(folder, ["euler-2"], None, 20, tmp_path / "out")
    assert [row.samples for row in rows[2:]] == ["euler-2, guidance 1"]
    assert rows[0].agreement is not None
    assert rows[0].agreement > 0.7
    assert len(rows[0].by_class) == 10
    assert (tmp_path / "out" / "by-class.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="--guidance is 2; this model was trained with condition_dropout = 0"):
        evaluate_by_class(folder, ["euler-2"], [2.0], 20, tmp_path / "out")
    with pytest.raises(UsageError, match="--samples is 9; it must be from 10"):
        evaluate_by_class(folder, ["euler-2"], None, 9, tmp_path / "out")
    with pytest.raises(UsageError, match="--guidance is nan"):
        evaluate_by_class(folder, ["euler-2"], [float("nan")], 20, tmp_path / "out")


def test_what_has_no_classes_or_no_data_is_said(
    recipe: Recipe, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = fit(recipe, options)
    out = ["--out", str(tmp_path / "out")]
    assert main(["evaluate", str(folder), "--by-class", *out]) == 2
    assert "--by-class needs a model trained with at least two class labels" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--guidance", "2", *out]) == 2
    assert "--guidance is for conditional models" in capsys.readouterr().err


def test_a_model_whose_data_are_gone_cannot_be_judged(clusters: Path, tmp_path: Path):
    (tmp_path / "rows.npz").unlink()
    with pytest.raises(TrainingError, match=r"needs the real data with labels: no data to compare with: .*rows\.npz"):
        evaluate_by_class(clusters, ["rk4-8"], [1.0], 30, tmp_path / "out")
    assert not (clusters / "report.json").exists()
