"""Measuring a published model: it is served by then, the time is limited, and a bad model is not praised."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.architectures.analytic import Gaussian
from models.checkpoint.bound import read_report
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from selection.frontier import read_frontier
from training import measurement
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet
from training.errors import Stopped
from training.evaluation import TimeUp, limited
from training.fit import Options, fit
from training.measurement import measure_published

pytestmark = pytest.mark.usefixtures("quick_measurements")


@pytest.fixture
def folder(recipe: Recipe, options: Options) -> Path:
    """A model that has hardly been trained, and has not been measured."""
    return fit(recipe, options)


def test_nothing_is_measured_in_no_time(folder: Path, recipe: Recipe):
    assert not (folder / "report.json").exists()
    said: list[str] = []
    assert measure_published(folder, prepare(recipe), 0, 0.0, say=said.append) is None
    assert not said
    assert measure_published(folder, prepare(recipe), 0, 1e-9, say=said.append) is None
    assert (
        said[-1]
        == f"not all was measured in 1e-09 s; python -m training evaluate {folder} takes as long as you give it"
    )
    assert {path.name for path in folder.iterdir()} == {"card.json", "weights.safetensors"}


def test_a_model_that_is_not_like_its_data_is_named_no_price(folder: Path, recipe: Recipe):
    before, said = read_card(folder), list[str]()
    quality = measure_published(folder, prepare(recipe), 0, 1000.0, say=said.append)
    assert quality is not None
    assert quality.swd > quality.swd_chance
    assert any(line.startswith("WARNING: samples are not like the data") for line in said)
    assert said[-1] == "price: none is named, because the samples are not like the data, whatever they cost"
    assert read_card(folder) == before, "measuring leaves the checkpoint as it is"
    parts = read_report(folder, before)
    assert parts.keys() == {"quality", "report", "examples"}
    report: Any = parts["report"]
    assert report["warnings"][0].startswith("samples are not like the data")
    assert read_frontier(folder, before) is not None


def test_a_good_model_has_its_price(tmp_path: Path):
    folder = save(tmp_path, "exact", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    rows = np.random.default_rng(0).normal(2.0, 0.5, (3, 400, 2)).astype(np.float32)
    data, said = DataSet(rows[0], rows[1], rows[2], "400 points", Decoder.identity((2,))), list[str]()
    measure_published(folder, data, 0, 1000.0, say=said.append, examples=False)
    assert not any("WARNING" in line for line in said), said
    assert any(line.startswith("samples cannot be told from unseen data: a judge is right in 5") for line in said)
    assert any(line.startswith("price: ") and "of the spread" in line for line in said)
    assert read_report(folder, read_card(folder)).keys() == {"quality", "report", "price"}


def test_examples_are_held_out_data_in_their_own_form():
    rows = np.random.default_rng(0).normal(size=(3, 300, 2)).astype(np.float32)
    scaled = Decoder.affine(torch.tensor([10.0, 1.0]), torch.tensor([5.0, 0.0]), data_shape=(2,))
    examples = measurement.examples_of(DataSet(rows[0], rows[1], rows[2], "300 points", scaled))
    np.testing.assert_allclose(examples, rows[1][:256] * [10.0, 1.0] + [5.0, 0.0], rtol=1e-5)
    half = torch.full((64,), 0.5)
    sheet = Decoder.affine(half, half, data_shape=(8, 8))
    pixels = np.random.default_rng(0).uniform(-1, 1, (3, 20, 64)).astype(np.float32)
    pictures = measurement.examples_of(DataSet(pixels[0], pixels[1], pixels[2], "20 pictures", sheet))
    assert np.shape(pictures) == (16, 8, 8)
    large = Decoder.affine(torch.ones(20_000), torch.zeros(20_000), data_shape=(100, 200))
    zeros = np.zeros((2, 20_000), np.float32)
    assert measurement.examples_of(DataSet(zeros, zeros, zeros, "2 large ones", large)) == []


def test_what_is_published_is_kept_when_measuring_is_stopped(
    recipe: Recipe, options: Options, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        assert not list(options.runs_dir.iterdir()), "the run is over"
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement, "draw", lambda *_, **__: stop())
    with pytest.raises(Stopped, match=r"stopped measuring; the model is in .*/tiny/1, python -m training") as stopped:
        fit(recipe, replace(options, seconds=100))
    assert stopped.value.exit_code == 130
    assert load(options.models_dir / "tiny" / "1").card.training["recipe_hash"] == recipe.hash


def test_a_network_is_interrupted_between_two_calls():
    network = nn.Linear(2, 2)
    x = torch.zeros(1, 2)
    with limited(network, time.monotonic() + 1000):
        network(x)
    with limited(network, time.monotonic() - 1), pytest.raises(TimeUp):
        network(x)
    network(x)
