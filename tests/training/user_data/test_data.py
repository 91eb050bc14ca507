from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from models.condition_values import Values
from models.named_conditions import NamedConditions
from training.config import Recipe
from training.data import prepare
from training.errors import DataError
from training.user_data.data import pin


def recipe(**data: Any) -> Recipe:
    network = data.pop("network", {})
    return Recipe.model_validate({"name": "m", "epochs": 1, "data": data, "network": network})


def test_own_rows_are_scaled_split_and_decoded_back(tmp_path: Path, rows: np.ndarray):
    np.save(tmp_path / "rows.npy", rows)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy"), held_out=0.2))
    assert (len(data.train), len(data.reference)) == (40, 10)
    assert np.allclose(data.train.std(0), 1, atol=1e-5)
    whole = data.decoder.decode(torch.from_numpy(np.concatenate([data.train, data.reference]))).numpy()
    assert np.allclose(np.sort(whole, 0), np.sort(rows, 0), atol=1e-4)


def test_changed_data_are_another_recipe_and_moved_data_are_not(tmp_path: Path, rows: np.ndarray):
    for name, content in (("a", rows), ("b", rows), ("c", rows + 1)):
        np.save(tmp_path / f"{name}.npy", content)
    hashes = [pin(recipe(name="vectors", path=str(tmp_path / f"{name}.npy"))).hash for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(DataError, match="are not those of the recipe"):
        pin(recipe(name="vectors", path=str(tmp_path / "a.npy"), sha256="0" * 64))


@pytest.mark.parametrize(
    ("content", "message"),
    [("a\n1\n2\n", "has 2 samples; at least 3"), ("a\n1\n1\n1\n1\n", "all samples are the same")],
)
def test_rows_that_nothing_can_be_learned_from(tmp_path: Path, content: str, message: str):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        prepare(recipe(name="vectors", path=str(path)))


def test_conditions_are_standardised_by_the_training_rows(tmp_path: Path):
    draws = np.random.default_rng(0)
    columns = {
        "u": draws.normal(size=60),
        "year": draws.integers(1990, 2025, 60),
        "income": draws.uniform(20_000, 90_000, 60),
        "time": 1.7e9 + draws.permutation(60),
        "same": np.full(60, 0.0016),
    }
    path = tmp_path / "t.csv"
    rows = np.stack(list(columns.values()), axis=1)
    path.write_text(",".join(columns) + "\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist()))
    given = ["year", "income", "time", "same"]
    data = prepare(recipe(name="vectors", path=str(path), columns=["u"], condition=given, held_out=0.1))
    assert data.condition is not None
    assert data.conditions is not None
    assert data.reference_conditions is not None
    assert data.conditions.dtype == np.float32
    np.testing.assert_allclose(data.conditions.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.conditions.std(0), [1, 1, 1, 0], atol=1e-6)
    u = data.decoder.decode(torch.from_numpy(np.concatenate([data.train, data.reference]))).numpy()
    order = np.abs(u - columns["u"]).argmin(1)  # the row of each sample in the table
    asked = Values(
        NamedConditions({"condition": data.condition}), {"condition": rows[order, 1:].tolist()}, 60, torch.float32
    )
    network = asked.tensors()["condition"].expanded(60).numpy()
    assert np.array_equal(network, np.concatenate([data.conditions, data.reference_conditions]))
    assert data.notes[-1] == "conditions that never change, so that samples cannot follow them: same"


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_class_is_trained_and_said_to_be_unmeasured(tmp_path: Path, seed: int):
    path = tmp_path / "t.csv"
    path.write_text("x,k\n" + "".join(f"{row},{'rare' if row == 50 else 'common'}\n" for row in range(200)))
    data = prepare(recipe(name="vectors", path=str(path), label="k").model_copy(update={"seed": seed}))
    assert data.conditions is not None
    assert np.bincount(data.conditions).tolist() == [179, 1]
    assert data.notes[-1] == "no sample is held out of rare (1), so nothing is measured on them"


def test_folders_whose_names_are_equal_numbers_are_two_classes(tmp_path: Path):
    for name in ("01", "1"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("L", (2, 2), 40 * number).save(tmp_path / name / f"{number}.png")
    data = prepare(recipe(name="images", path=str(tmp_path), conditional=True, network={"architecture": "unet"}))
    assert data.condition is not None
    assert data.condition.names == ("01", "1")


def test_data_without_a_place_are_refused():
    with pytest.raises(DataError, match=r"data\.path is not given"):
        pin(recipe(name="vectors"))


def test_pictures_become_what_the_network_takes(pictures: Path):
    unet = {"architecture": "unet", "hidden": 4}
    data = prepare(recipe(name="images", path=str(pictures), colour=True, network=unet))
    assert data.train.shape == (11, 3, 8, 4)
    assert data.decoder.decode(torch.from_numpy(data.train)).shape == (11, 3, 8, 4)
    assert prepare(recipe(name="images", path=str(pictures), network=unet)).decoder.data_shape == (8, 4)
    assert prepare(recipe(name="images", path=str(pictures), components=5)).train.shape == (11, 5)


def test_too_few_pictures_for_the_components(pictures: Path):
    with pytest.raises(DataError, match=r"11 pictures are too few for data\.components = 20; use more pictures"):
        prepare(recipe(name="images", path=str(pictures), components=20))


FAR = 1e9 + np.random.default_rng(0).normal(size=(60, 2)) * [1, 1e-3]


@pytest.mark.parametrize("kind", ["csv", "npy", "npz"])
def test_data_far_from_zero_are_scaled_in_float64_and_decoded_back(tmp_path: Path, kind: str):
    path = tmp_path / f"far.{kind}"
    if kind == "csv":
        path.write_text("\n".join(",".join(map(repr, row)) for row in FAR.tolist()))
    elif kind == "npy":
        np.save(path, FAR)
    else:
        np.savez(path, x=FAR)
    data = prepare(recipe(name="vectors", path=str(path)))
    assert np.allclose(data.train.std(0), 1, atol=1e-5)
    assert np.allclose(data.train.mean(0), 0, atol=1e-3)
    whole = data.decoder.decode(torch.from_numpy(np.concatenate([data.train, data.reference]))).numpy()
    assert whole.dtype == np.float64
    off = np.abs(np.sort(whole, 0) - np.sort(FAR, 0)).max(0)
    # a state of up to 4 has steps of 2^-22, and 1e9 has steps of 2^-23
    assert (off <= FAR.std(0) * 2**-22 + 2**-23).all()


def test_data_near_zero_are_decoded_as_they_were(tmp_path: Path, rows: np.ndarray):
    np.save(tmp_path / "rows.npy", rows[:, :2])
    assert prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy"))).decoder.config.dtype is None


@pytest.mark.parametrize("unit", [1e-200, 1e-30, 1e30])
def test_tiny_and_huge_units_keep_their_spread(tmp_path: Path, unit: float):
    rows = np.random.default_rng(0).normal(size=(40, 1)) * unit
    np.save(tmp_path / "rows.npy", rows)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy")))
    assert np.allclose(data.train.std(0), 1, atol=1e-5)


def test_a_column_that_never_changes_is_decoded_to_itself(tmp_path: Path):
    rows = np.stack([np.arange(30.0), np.full(30, 123456789.0), np.full(30, 0.1)], axis=1)
    np.save(tmp_path / "rows.npy", rows)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy")))
    decoded = data.decoder.decode(torch.from_numpy(data.train)).numpy()
    assert np.allclose(decoded[:, 1:], [123456789.0, 0.1], rtol=1e-15)


def test_own_data_have_another_hash_than_when_they_were_read_in_float32(tmp_path: Path, rows: np.ndarray):
    from training import config

    np.save(tmp_path / "rows.npy", rows)
    own, points = recipe(name="vectors", path=str(tmp_path / "rows.npy")), recipe(name="moons")
    before = own.hash, points.hash
    config_rules, config._OWN_RULES = config._OWN_RULES, 1
    try:
        assert own.hash != before[0]
        assert points.hash == before[1]
    finally:
        config._OWN_RULES = config_rules


def test_the_first_lines_of_a_run_say_what_was_read(pictures: Path, table: Path):
    found = prepare(recipe(name="images", path=str(pictures), conditional=True)).notes
    assert found[0] == f"read 12 pictures of 4 x 8 pixels from {pictures} as grey"
    assert found[1].startswith("12 of 8-bit grey (L), values ")
    assert found[-2] == "2 classes: left 6, right 6"
    found = prepare(recipe(name="vectors", path=str(table), label="kind")).notes
    assert found[0].startswith(f"read 50 rows from {table}: column a from ")
    assert found[-1].startswith("2 classes: cat ")
