from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.config import Recipe
from training.data import prepare
from training.errors import DataError
from training.own.data import pin


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
    ("content", "said"),
    [("a\n1\n2\n", "has 2 samples; at least 3"), ("a\n1\n1\n1\n1\n", "all samples are the same")],
)
def test_rows_that_nothing_can_be_learned_from(tmp_path: Path, content: str, said: str):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        prepare(recipe(name="vectors", path=str(path)))


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
    with pytest.raises(DataError, match=r"11 pictures are too few for data\.components = 20; give more of them"):
        prepare(recipe(name="images", path=str(pictures), components=20))
