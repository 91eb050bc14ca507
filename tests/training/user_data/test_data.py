from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image

from models.condition_values import Values
from models.conditions import NamedCondition, NamedConditions
from models.noise import noise
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet, split
from training.errors import DataError
from training.spaces import conditioned, deviations, skewness
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
    assert "no sample is held out of rare (1), so nothing is measured on them" in data.notes


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


@pytest.mark.parametrize("unit", [1e-200, 1e155, 1e200])
def test_moments_are_of_the_values_not_of_their_unit(unit: float):
    column = np.random.default_rng(0).exponential(size=(40, 1))
    assert deviations(column * unit)[0] == pytest.approx(column.std() * unit)
    assert skewness(column[:, 0] * unit) == pytest.approx(skewness(column[:, 0]))
    assert skewness(column[:, 0]) == pytest.approx(scipy.stats.skew(column[:, 0]))
    assert (skewness(np.full(9, 0.1 * unit)), skewness(np.zeros(9))) == (0, 0)
    condition, values = conditioned(NamedCondition.vector(1), column * unit, np.arange(30))
    assert condition is not None
    assert values is not None
    assert values[:30].std() == pytest.approx(1, rel=1e-5)


def test_a_column_that_never_changes_is_decoded_to_itself(tmp_path: Path):
    rows = np.stack([np.arange(30.0), np.full(30, 123456789.0), np.full(30, 0.1)], axis=1)
    np.save(tmp_path / "rows.npy", rows)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy")))
    decoded = data.decoder.decode(torch.from_numpy(data.train)).numpy()
    assert np.allclose(decoded[:, 1:], [123456789.0, 0.1], rtol=1e-15)


def prepared(path: Path, content: str, **fields: Any) -> DataSet:
    path.write_text(content)
    return prepare(recipe(name="vectors", path=str(path), **fields))


def decoded(data: DataSet, rows: int = 200) -> np.ndarray:
    """Decode states that have nothing to do with the data."""
    return data.decoder.decode(noise(0, 0, rows, data.train.shape[1:])).numpy()


@pytest.mark.parametrize(("constant", "dtype"), [("0.0016", np.float64), ("0.5", np.float32), ("16777217", np.float64)])
def test_a_constant_is_exact_in_the_dtype_of_samples(tmp_path: Path, constant: str, dtype: type):
    found = decoded(prepared(tmp_path / "t.csv", "x,c\n" + "".join(f"{row % 7 - 3},{constant}\n" for row in range(30))))
    assert found.dtype == dtype
    assert set(found[:, 1].tolist()) == {float(constant)}


TABLE = "x,c,n,b\n" + "".join(f"{row / 7:.4f},0.0016,{1990 + row % 5},{row % 2}\n" for row in range(60))


def test_columns_that_never_change_and_whole_ones_come_back_so(tmp_path: Path):
    data = prepared(tmp_path / "t.csv", TABLE)
    found = decoded(data)
    assert (found[:, 1] == 0.0016).all()
    assert set(found[:, 2]) == {1990, 1991, 1992, 1993, 1994}
    assert set(found[:, 3]) == {0, 1}
    assert (found[:, 0] != found[:, 0].round()).mean() > 0.9
    columns = data.decoder.config.columns
    assert columns is not None
    assert [(column.name, column.kind) for column in columns] == [
        ("x", "number"), ("c", "number"), ("n", "whole"), ("b", "yes-no")
    ]  # fmt: skip
    assert data.notes[-1] == (
        "every value is whole, so samples are rounded and stay in range: n (1990 to 1994), b (yes/no); --no-round "
        "(data.round = false) leaves them as they are"
    )


def test_rounding_can_be_turned_off_and_constants_stay(tmp_path: Path):
    data = prepared(tmp_path / "t.csv", TABLE, round=False)
    found = decoded(data)
    assert (found[:, 1] == 0.0016).all()
    assert (found[:, 2:] != found[:, 2:].round()).mean() > 0.9
    assert "rounded" not in "".join(data.notes)


def test_a_column_with_one_fraction_is_not_whole(tmp_path: Path):
    for row in (0, 30):
        lines = TABLE.splitlines()
        lines[1 + row] = lines[1 + row][:-1] + "0.5"
        columns = prepared(tmp_path / "t.csv", "\n".join(lines)).decoder.config.columns
        assert columns is not None
        assert columns[3].kind == "number"


def test_a_column_that_varies_in_held_out_rows_only_is_constant_and_said_so(tmp_path: Path):
    (held,) = split("t", 60, 0.01, 0)[1]
    rows = "".join(f"{row / 7:.4f},{0.25 if row == held else 0.5}\n" for row in range(60))
    data = prepared(tmp_path / "t.csv", "x,c\n" + rows, held_out=0.01)
    assert (decoded(data)[:, 1] == 0.5).all()
    assert data.notes[-1] == (
        "varies in the held-out rows only, so all samples have the value of the training rows: c (0.5)"
    )


def test_large_whole_numbers_keep_their_last_digit(tmp_path: Path):
    rows = "".join(f"{row},{100_000_001 + row % 3 * 50_000_000}\n" for row in range(60))
    found = decoded(prepared(tmp_path / "t.csv", "x,n\n" + rows))
    assert found.dtype == np.float64
    assert (found[:, 1].min(), found[:, 1].max()) == (100_000_001, 200_000_001)


@pytest.mark.parametrize("data", [{}, {"components": 3}, {"colour": True}])
def test_pixels_that_never_change_come_back_exactly(tmp_path: Path, data: dict[str, Any]):
    source = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    source[:, 0], source[:, 1, 0] = 0, 77
    np.save(tmp_path / "a.npy", source)
    network = {} if "components" in data else {"architecture": "unet", "hidden": 4, "levels": 2}
    found = decoded(prepare(recipe(name="images", path=str(tmp_path / "a.npy"), network=network, **data)))
    assert (found[..., 0, :] == 0).all()
    assert (found[..., 1, 0] == np.float32(77 / 255)).all()
    assert len(np.unique(found[..., 3, 3])) > 20


def test_very_many_columns_are_neither_described_nor_rounded(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.arange(4 * 10_001.0).reshape(4, -1) % 7)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "a.npy")))
    assert data.decoder.config.columns is None
    assert data.notes[-1] == "more than 10,000 columns are neither named in the card nor rounded"


def with_outlier(value: float, rows: tuple[int, ...] = (17,)) -> np.ndarray:
    made = np.random.default_rng(0).normal(size=(1000, 2))
    made[list(rows), 1] = value
    return made


def test_one_row_far_from_the_others_is_named_in_the_first_lines(tmp_path: Path):
    rows = with_outlier(1e6)
    (tmp_path / "t.csv").write_text("a,b\n\n" + "".join(f"{a:.6f},{b:.6f}\n" for a, b in rows))
    np.save(tmp_path / "t.npy", rows)
    advice = (
        'correct or remove such rows if they are wrong, or use --scale robust (data.scale = "robust"), which scales by '
        "median and quartiles"
    )
    for kind, column, where in (("csv", "b", "line 20"), ("npy", "1", "sample 17 (counted from 0)")):
        notes = prepare(recipe(name="vectors", path=str(tmp_path / f"t.{kind}"))).notes
        deviation = "the standard deviation is 3.16e+04, and 0.943 without the 10 furthest values"
        assert notes[1:] == (f"column {column} is 1000000 in {where}: {deviation}; {advice}",)


def test_a_robust_scale_does_not_see_the_row(tmp_path: Path):
    np.save(tmp_path / "t.npy", with_outlier(1e6))
    config = recipe(name="vectors", path=str(tmp_path / "t.npy"), scale="robust")
    data = prepare(config)
    others = data.train[np.abs(data.train[:, 1]) < 10]
    assert len(others) >= 899
    np.testing.assert_allclose(others.std(0), 1, atol=0.1)
    np.testing.assert_allclose(data.decoder.scale, 1, atol=0.1)
    assert data.card["scaling"] == "each column to median 0 and interquartile range 1.349"
    assert data.notes[1].endswith("; it is scaled by quartiles")
    assert np.allclose(np.sort(data.decoder.decode(torch.from_numpy(data.train)).numpy()[:, 1])[-1], 1e6)


def test_the_robust_scale_of_a_column_that_is_mostly_the_same(tmp_path: Path):
    rows = with_outlier(1e6)
    rows[np.arange(1000) % 4 > 0, 0] = 0
    np.save(tmp_path / "t.npy", rows)
    scale = prepare(recipe(name="vectors", path=str(tmp_path / "t.npy"), scale="robust")).decoder.scale
    assert 0.2 < float(scale[0]) < 1


def test_a_number_that_stands_for_missing_is_an_outlier_however_many_rows_have_it(tmp_path: Path):
    np.save(tmp_path / "t.npy", with_outlier(-999, tuple(range(5, 205))))
    notes = prepare(recipe(name="vectors", path=str(tmp_path / "t.npy"))).notes
    assert "column 1 is -999 in sample 5 (counted from 0): " in notes[1]
    assert "without the 200 furthest values" in notes[1]


@pytest.mark.parametrize("kind", ["normal", "exponential", "lognormal", "rare", "two", "uniform", "zeros"])
def test_columns_without_outliers_are_not_remarked(tmp_path: Path, kind: str):
    source = np.random.default_rng(1)
    column = {
        "normal": source.normal(size=500), "exponential": source.exponential(size=500), "uniform": source.random(500),
        "lognormal": source.lognormal(size=500), "rare": source.random(500) < 0.01, "zeros": source.normal(size=500)
        * (source.random(500) < 0.2), "two": source.choice([-1, 1], 500) * 50 + source.normal(size=500),
    }[kind]  # fmt: skip
    np.save(tmp_path / "t.npy", np.stack([column, source.normal(size=500)], 1))
    assert "furthest" not in "".join(prepare(recipe(name="vectors", path=str(tmp_path / "t.npy"))).notes)


def test_outliers_of_a_condition_are_named(tmp_path: Path):
    a, b = with_outlier(1e6).T
    np.savez(tmp_path / "t.npz", x=a[:, None], c=b[:, None])
    data = prepare(recipe(name="vectors", path=str(tmp_path / "t.npz"), columns=["x"], condition=["c"]))
    assert data.notes[1].startswith("column c of the condition is 1000000 in sample 17 (counted from 0): ")


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
