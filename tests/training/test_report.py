"""The report on a model: silent on good ones, and loud on each fault that once went unseen."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.conditions import NamedCondition
from models.decoder import Decoder
from training import trainer as module
from training.comparison import report_on
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet
from training.evaluation import Draw, draw
from training.fit import new_trainer
from training.flow_matching import optimal_coupling
from training.report import SampleReport
from training.spaces import original

RNG = np.random.default_rng(0)


def trained(data: DataSet, recipe: Recipe) -> SampleReport:
    """Train on the data as a run does, and report on the weights that it would publish."""
    run = new_trainer(recipe, data, torch.device("cpu"))
    run.run()
    return report_on(draw(run.published(), data, 0), data, 0)


def table(path: Path, values: dict[str, Any], **settings: Any) -> Recipe:
    """Write columns of values to a .csv; return a recipe for them, a short run of a small network."""
    rows = zip(*values.values(), strict=True)
    path.write_text("\n".join([",".join(values), *(",".join(map(str, row)) for row in rows)]))
    data = {"name": "vectors", "path": str(path)} | {
        k: settings.pop(k) for k in ("columns", "label", "condition") if k in settings
    }
    fields = {"epochs": 30, "batch_size": 64, "learning_rate": 5e-3, "schedule": "cosine", "ema": 0.999, **settings}
    network = {"hidden": 64, "blocks": 1, "time_width": 16, "max_frequency": 6.0}
    return Recipe.model_validate({"name": "tiny", "data": data, "network": network, **fields})


def clusters(count: int) -> tuple[Any, Any, Any]:
    """Two columns of two clusters at (-3, 0) and (3, 0), sd 0.3, and which one each row is in."""
    right = RNG.integers(0, 2, count)
    return (
        6.0 * right - 3 + 0.3 * RNG.normal(size=count),
        0.3 * RNG.normal(size=count),
        np.array(["left", "right"])[right],
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def test_conditions_that_were_never_scaled(path: Path):
    """u follows the year, and is the same in all years for a network that sees 1990 to 2024 as they are."""
    year = RNG.integers(1990, 2025, 1500)
    columns = {"u": (year - 2007) / 5 + 0.2 * RNG.normal(size=1500), "v": RNG.normal(size=1500), "year": year}
    recipe = table(path, columns, columns=["u", "v"], condition=["year"], epochs=50)
    data = prepare(recipe)
    assert data.conditions is not None
    assert data.reference_conditions is not None
    assert data.condition is not None
    good = trained(data, recipe)
    assert not good.warnings
    assert good.ranges[0].name.startswith("year from 1990 to 20")
    assert any(line.startswith("samples follow the condition: what is read off") for line in good.lines())
    raw = [original(data.condition, c).astype(np.float32) for c in (data.conditions, data.reference_conditions)]
    plain = data.condition.model_copy(update={"mean": None, "scale": 1.0})
    bad = trained(replace(data, condition=plain, conditions=raw[0], reference_conditions=raw[1]), recipe)
    assert bad.broken
    assert any("samples do not follow condition year" in warning for warning in bad.warnings)
    assert not any("samples follow the condition" in line for line in bad.lines())


def test_an_average_that_is_mostly_the_initial_weights(path: Path, monkeypatch: pytest.MonkeyPatch):
    x, y, _ = clusters(400)
    recipe = table(path, {"x": x, "y": y}, epochs=50)
    assert not trained(prepare(recipe), recipe).warnings
    monkeypatch.setattr(module, "average_decay", lambda ema, step: ema)
    bad = trained(prepare(recipe), recipe)
    assert bad.broken
    assert bad.warnings[0].startswith("samples are not like the data: a judge is right in")


def test_a_coupling_that_ignores_classes(path: Path, monkeypatch: pytest.MonkeyPatch):
    x, y, side = clusters(1500)
    recipe = table(path, {"x": x, "y": y, "side": side}, label="side", coupling="ot", epochs=40)
    good = trained(prepare(recipe), recipe)
    assert not good.warnings
    assert any(line.startswith("samples follow their class") for line in good.lines())
    monkeypatch.setattr(module, "optimal_coupling", lambda x0, x1, conditions: optimal_coupling(x0, x1))
    bad = trained(prepare(recipe), recipe)
    assert any("class left are not like the data" in warning for warning in bad.warnings)
    assert any("class right are not like the data" in warning for warning in bad.warnings)


def test_a_class_that_was_never_trained(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DataSet, "__post_init__", lambda self: None)  # which refuses such data
    x, y, side = clusters(400)
    recipe = table(path, {"x": x, "y": y, "side": side}, label="side")
    data = prepare(recipe)
    assert data.conditions is not None
    kept = data.conditions == 0  # as if all rows of the other class were held out
    bad = trained(replace(data, train=data.train[kept], conditions=data.conditions[kept]), recipe)
    assert "class right has no training row: its samples are not to be trusted" in bad.warnings
    assert any("samples do not follow class right" in w or "class right are not like" in w for w in bad.warnings)
    assert not any("class left has" in warning for warning in bad.warnings)


def test_a_row_far_off_that_sets_the_scale(path: Path):
    columns = {"a": RNG.normal(size=1000), "income": RNG.normal(size=1000)}
    recipe = table(path, columns)
    assert not trained(prepare(recipe), recipe).warnings
    columns["income"][500] = 1e6
    recipe = table(path, columns)
    bad = trained(prepare(recipe), recipe)
    assert bad.broken
    assert any(w.startswith("column income differs from the data: 95% of samples lie from") for w in bad.warnings)


def drawn(states: Any) -> Draw:
    """Samples as if a model had drawn them."""
    return Draw(
        np.asarray(states, np.float64), np.arange(len(states)), len(states), "euler-1", np.ones(len(states), int)
    )


def given(train: Any, reference: Any) -> DataSet:
    """Real data without a condition, in their own scale."""
    parts = [np.asarray(part, np.float32) for part in (train, reference, train)]
    return DataSet(parts[0], parts[1], parts[2], "held-out samples", Decoder.identity(parts[0].shape[1:]))


def pictures(count: int) -> Any:
    """Smooth blobs of 8 x 8 pixels on a background of exactly -1."""
    rows = np.arange(8)
    x, y = RNG.uniform(2, 5, (2, count, 1, 1))
    return np.maximum(2 * np.exp(-((rows[:, None] - x) ** 2 + (rows - y) ** 2) / 4) - 1.1, -1)[:, None]


def test_pictures_are_judged_by_what_they_show():
    data = given(pictures(600), pictures(300))
    good = report_on(drawn(pictures(300) + 1e-3 * RNG.normal(size=(300, 1, 8, 8))), data, 0)
    assert not good.warnings, "a background that is not exactly -1 is no fault"
    assert good.columns == good.pairs == []
    noise = report_on(drawn(RNG.normal(size=(300, 1, 8, 8))), data, 0)
    assert noise.broken
    blurred = pictures(300)
    blurred = (blurred + np.roll(blurred, 1, 2) + np.roll(blurred, 1, 3)) / 3
    assert report_on(drawn(blurred), data, 0).broken


def test_columns_that_belong_together_and_samples_that_do_not():
    def rows(count: int) -> Any:
        x = RNG.normal(size=(count, 3))
        x[:, 1] = 0.9 * x[:, 0] + 0.4 * x[:, 1]
        return x

    data = given(rows(900), rows(400))
    assert not report_on(drawn(rows(400)), data, 0).warnings
    loose = rows(400)
    loose[:, 1] = RNG.permutation(loose[:, 1])
    report = report_on(drawn(loose), data, 0)
    [pair] = report.pairs
    assert pair.columns == ["0", "1"]
    assert pair.data > 0.8
    assert abs(pair.samples) < 0.2
    assert any(warning.startswith("0 and 1 are less correlated in samples") for warning in report.warnings)
    assert not any(column.far for column in report.columns)


def test_samples_that_are_the_training_rows():
    train = RNG.normal(size=(500, 6))
    data = given(train, RNG.normal(size=(300, 6)))
    report = report_on(drawn(train[:300] + 1e-3 * RNG.normal(size=(300, 6))), data, 0)
    assert report.nearer > 0.99
    assert any("the network memorises" in warning for warning in report.warnings)
    assert report_on(drawn(RNG.normal(size=(300, 6))), data, 0).nearer == pytest.approx(0.5, abs=0.15)


def test_all_training_rows_are_counted_however_many_are_looked_at():
    year = RNG.permutation(3000)[:, None].astype(np.float32)
    data = replace(
        given(RNG.normal(size=(3000, 2)), RNG.normal(size=(60, 2))),
        condition=NamedCondition.vector(1),
        conditions=year,
        reference_conditions=year[:60],
        condition_names=("year",),
    )
    report = report_on(drawn(RNG.normal(size=(60, 2))), data, 0)
    assert [group.name for group in report.ranges] == [
        "year from 0 to 999.7", "year from 999.7 to 1999", "year from 1999 to 2999"
    ]  # fmt: skip
    assert [group.trained for group in report.ranges] == [1000, 1000, 1000]
    assert sum(group.rows for group in report.ranges) == 60


def test_the_report_is_json_with_its_sentences():
    data = given(RNG.normal(size=(100, 2)), RNG.normal(size=(50, 2)))
    record = json.loads(json.dumps(report_on(drawn(RNG.normal(size=(50, 2))), data, 0).record(), allow_nan=False))
    assert record["words"][0] == "is it any good? 50 samples by euler-1 against held-out samples"
    assert record["warnings"] == []
    assert [column["name"] for column in record["columns"]] == ["0", "1"]
