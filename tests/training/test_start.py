"""A training that continues a published model: its weights, its space, its conditions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from training.__main__ import main
from training.config import CONFIGS, Recipe, StartConfig, load_recipe
from training.data import data_of, prepare
from training.errors import UsageError
from training.fit import Options, fit, new_trainer
from training.parents import pin_parent
from training.user_data.data import pin


def rows(path: Path, shift: float = 0.0, names: tuple[str, ...] = ("a", "b"), columns: str = "x,rooms,kind") -> Path:
    """Write a table of a number, a whole number and a label."""
    source = np.random.default_rng(int(shift))
    x, rooms = shift + source.normal(size=90), source.integers(1, 6, 90) + int(shift)
    lines = [f"{a},{b},{names[k % len(names)]}" for k, (a, b) in enumerate(zip(x, rooms, strict=True))]
    path.write_text("\n".join([columns, *lines]))
    return path


def recipe_of(path: Path, **changes: Any) -> Recipe:
    data = {"name": "vectors", "path": str(path), "label": "kind"}
    network = {"hidden": 8, "blocks": 1, "time_width": 4}
    fields: dict[str, Any] = {"name": "tiny", "steps": 3, "batch_size": 32, "data": data, "network": network}
    return Recipe.model_validate({**fields, **changes})


@pytest.fixture
def parent(tmp_path: Path, options: Options) -> Path:
    return fit(recipe_of(rows(tmp_path / "first.csv")), options)


def continued(parent: Path, path: Path, **changes: Any) -> Recipe:
    return pin_parent(pin(recipe_of(path, name="more", start={"checkpoint": str(parent)}, **changes)))


def test_it_begins_with_the_weights_and_the_scale_of_the_model(parent: Path, tmp_path: Path, options: Options):
    recipe = continued(parent, rows(tmp_path / "second.csv", shift=20.0), learning_rate=1e-12)
    data, before = prepare(recipe), load(parent)
    run = new_trainer(recipe, data, torch.device("cpu"))
    for mine, theirs in zip(run.network.parameters(), before.velocity.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(data.decoder.scale, before.decoder.scale)
    assert data.train[:, 0].mean() > 10, "rows at 20, in the scale of rows at 0"
    found = data.decoder.decode(torch.from_numpy(data.train)).numpy()
    assert set(found[:, 1]) == {21.0, 22.0, 23.0, 24.0, 25.0}, "whole numbers beyond those of the model"
    path = fit(recipe, options)
    card, after = read_card(path), load(path)
    assert card.dataset["start"] == {"parent": "tiny", "parent_weights_sha256": before.card.weights_sha256}
    assert torch.equal(after.decoder.shift, before.decoder.shift)
    again, note = data_of(after, None)
    assert note == ""
    assert again is not None
    assert again.digest == data.digest == card.dataset["sha256"]


def test_another_model_to_continue_is_another_recipe(parent: Path, tmp_path: Path):
    path = rows(tmp_path / "second.csv", shift=1.0)
    recipe = continued(parent, path)
    assert recipe.start == StartConfig(checkpoint=str(parent), sha256=read_card(parent).weights_sha256)
    moved = tmp_path / "elsewhere"
    moved.symlink_to(parent)
    assert continued(moved, path).hash == recipe.hash != pin(recipe_of(path)).hash


@pytest.mark.parametrize(
    ("more", "changes", "words"),
    [
        ({"columns": "x,floors,kind"}, {}, "has the columns x, rooms; those of the data are x, floors"),
        ({"names": ("a", "c")}, {}, "takes the condition a class label, .*and the data give a class label"),
        ({}, {"condition_dropout": 0.0}, "was trained with a null condition; set condition_dropout above 0"),
        ({}, {"network": {"hidden": 16, "blocks": 1, "time_width": 4}}, "has other weights than the network"),
    ],
)
def test_data_and_networks_that_do_not_fit_are_refused(
    parent: Path, tmp_path: Path, more: dict[str, Any], changes: dict[str, Any], words: str
):
    recipe = continued(parent, rows(tmp_path / "second.csv", shift=1.0, **more), **changes)
    with pytest.raises(UsageError, match=words):
        new_trainer(recipe, prepare(recipe), torch.device("cpu"))


def test_vectors_are_expressed_in_the_scale_of_the_model(tmp_path: Path, options: Options):
    source = np.random.default_rng(0)
    recipes = []
    for name, year in (("first", 2000.0), ("second", 2100.0)):
        np.savez(tmp_path / f"{name}.npz", x=source.normal(size=(60, 2)), year=year + source.normal(size=(60, 1)))
        data = {"path": str(tmp_path / f"{name}.npz"), "name": "vectors", "columns": ["x"], "condition": ["year"]}
        recipes.append(recipe_of(tmp_path, data=data))
    start = StartConfig(checkpoint=str(fit(recipes[0], options)))
    data = prepare(recipes[1].model_copy(update={"start": start}))
    assert data.conditions is not None
    assert data.conditions.mean() == pytest.approx(100, rel=0.3), "a hundred deviations later"
    assert data.condition == prepare(recipes[0]).condition


def test_the_option_and_what_contradicts_it(parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = recipe_of(tmp_path / "first.csv").model_dump_json(exclude_none=True)
    assert '"start"' not in text
    with pytest.raises(UsageError, match="a student starts from its own parent; leave start out"):
        load_recipe(CONFIGS / "moons.toml", {"student": {"checkpoint": "x"}, "start": {"checkpoint": "x"}})
    assert main(["fit", "moons", "--from", str(tmp_path / "none")]) == 2
    assert "start.checkpoint: " in capsys.readouterr().err


def test_a_column_has_as_many_decimals_as_the_rows_of_the_model_and_of_the_data(tmp_path: Path, options: Options):
    def table(name: str, *columns: str) -> Path:
        lines = [",".join(column.format(k % 7) for column in columns) for k in range(90)]
        (tmp_path / name).write_text("\n".join(["a,b,c,d", *lines]))
        return tmp_path / name

    def of(path: Path, **changes: Any) -> Recipe:
        data = {"path": str(path), "name": "vectors"}
        return recipe_of(path, **{"data": data, **changes})

    first = fit(of(table("first.csv", "{}.5", "{}.25", "{}", "{}.5")), options)
    second = table("second.csv", "{}.125", "{}.5", "{}.5", "{}.0123456789012")
    recipe = pin_parent(pin(of(second, name="more", start={"checkpoint": str(first)})))
    columns = prepare(recipe).decoder.config.columns or ()
    assert [column.decimals for column in read_card(first).decoder.columns or ()] == [1, 2, None, 1]
    assert [(column.kind, column.decimals) for column in columns] == [
        ("number", 3), ("number", 2), ("number", 1), ("number", None)
    ]  # fmt: skip
