"""Reflow: pairs are the parent's own paths, stored once, and a run is bound to its parent."""

import resource
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from models.architectures import build
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.noise import noise
from solvers import Solution, integrate
from tests.training.support import small
from training import reflow
from training.__main__ import main
from training.config import CONFIGS, Recipe, ReflowConfig
from training.data import prepare
from training.draws import DrawPurpose, seed32
from training.errors import DataError, TrainingError, UsageError
from training.fit import Options, fit
from training.parents import pin_parent
from training.reflow import _as_taken, with_pairs


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    return fit(small(), Options(folder / "models", folder / "runs", device="cpu", seconds=0))


def child(parent: Path, **more: object) -> Recipe:
    recipe = small(name="moons")
    given = ReflowConfig.model_validate({"checkpoint": str(parent), "pairs": 40, "solver": "rk4-4", **more})
    return pin_parent(recipe.model_copy(update={"name": "child", "reflow": given}))


def reflowed(recipe: Recipe, parent: Path, **more: object) -> Recipe:
    given = ReflowConfig.model_validate({"checkpoint": str(parent), "pairs": 20, "solver": "euler-2", **more})
    return pin_parent(recipe.model_copy(update={"name": "child", "reflow": given}))


def saved_gaussian(folder: Path) -> Path:
    """A model of points in the plane that was not trained on any data."""
    network = build("gaussian", {"dim": 2, "m": 2.0, "s": 0.5})
    return save(folder / "models", "gaussian", network, Decoder.identity((2,)), dataset={}, training={}, seed=0)


def test_pairs_are_noise_and_the_ends_of_the_parents_paths(parent: Path, tmp_path: Path) -> None:
    recipe = child(parent)
    data = with_pairs(recipe, prepare(recipe), tmp_path)
    x0 = noise(seed32(recipe.seed, DrawPurpose.PAIRS), 0, 40, (2,))
    ends = integrate(load(parent).velocity, x0, solver="rk4", steps=4).x
    assert data.noise is not None
    assert np.array_equal(data.noise, x0.numpy())
    assert np.array_equal(data.train, ends.numpy())
    assert data.card["reflow"]["parent_weights_sha256"] == read_card(parent).weights_sha256


def test_parts_that_are_there_are_not_drawn_again(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflow, "_PART", 16)
    recipe = child(parent)
    whole = with_pairs(recipe, prepare(recipe), tmp_path)
    [folder] = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["00000.npy", "00001.npy", "00002.npy", "lock"]
    (folder / "00001.npy").unlink()
    solved: list[int] = []
    solve = reflow.solve
    monkeypatch.setattr(
        reflow, "solve", lambda v, x, *rest, **more: solved.append(len(x)) or solve(v, x, *rest, **more)
    )
    again = with_pairs(recipe, prepare(recipe), tmp_path)
    assert solved == [16]
    assert np.array_equal(whole.train, again.train)
    (folder / "00002.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"00002\.npy are damaged"):
        with_pairs(recipe, prepare(recipe), tmp_path)


def test_a_student_is_trained_and_its_card_names_the_parent(parent: Path, tmp_path: Path) -> None:
    path = fit(child(parent), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    card = read_card(path)
    assert not card.noise_independent
    written = card.dataset["reflow"]
    assert isinstance(written, dict)
    assert written["parent"] == "moons"
    assert written["pairs"] == 40
    assert card.training["recipe"]["reflow"]["sha256"] == read_card(parent).weights_sha256  # type: ignore[index, call-overload]


def test_the_noise_of_a_pair_is_what_its_step_trains_on(parent: Path, tmp_path: Path) -> None:
    """With the parent's ends as targets, the straight line from each x0 is learned, not one from other noise."""
    from training.fit import new_trainer

    recipe = child(parent)
    data = with_pairs(recipe, prepare(recipe), tmp_path)
    trainer = new_trainer(recipe, data, torch.device("cpu"))
    assert data.noise is not None
    assert trainer._noise is not None
    assert torch.equal(trainer._noise, torch.from_numpy(data.noise))


def test_the_pairs_take_the_place_of_the_recipes_coupling(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    text = (CONFIGS / "moons.toml").read_text()
    recipe.write_text(
        'coupling = "ot"\n' + text.replace("hidden = 256", "hidden = 16").replace("blocks = 4", "blocks = 1")
    )
    places = ["--models-dir", str(tmp_path / "models"), "--runs-dir", str(tmp_path / "runs"), "--device", "cpu"]
    places += ["--seconds", "0"]
    command = ["fit", "moons", "--config", str(recipe), "--epochs", "1", "--reflow", str(parent), "--pairs", "20"]
    assert main([*command, *places]) == 0
    trained = read_card(tmp_path / "models" / "moons-reflow" / "1").training["recipe"]
    assert trained["coupling"] == "independent"  # type: ignore[index, call-overload]
    capsys.readouterr()
    assert main([*command, "--coupling", "ot", *places]) == 2
    assert "leave coupling out" in capsys.readouterr().err


def test_labels_and_guidance_come_along(tmp_path: Path) -> None:
    recipe = small("digits_conditional")
    parent = fit(recipe, Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    given = ReflowConfig(checkpoint=str(parent), pairs=30, solver="euler-2", guidance=3.0)
    guided = pin_parent(recipe.model_copy(update={"name": "child", "reflow": given}))
    data, source = with_pairs(guided, prepare(guided), tmp_path), prepare(guided)
    assert data.conditions is not None
    assert data.conditions.shape == (30,)
    assert source.conditions is not None
    assert set(data.conditions.tolist()) <= set(source.conditions.tolist())
    plain = with_pairs(
        guided.model_copy(update={"reflow": given.model_copy(update={"guidance": None})}), prepare(guided), tmp_path
    )
    assert not np.array_equal(data.train, plain.train)


def test_another_parent_is_another_recipe_and_its_place_is_not(parent: Path, tmp_path: Path) -> None:
    first = child(parent)
    moved = tmp_path / "elsewhere" / "1"
    moved.parent.mkdir()
    moved.symlink_to(parent)
    assert child(moved).hash == first.hash
    assert small().model_copy(update={"name": "child"}).hash != first.hash
    with pytest.raises(UsageError, match="is not that of the recipe"):
        child(parent, sha256="0" * 64)


def test_a_parent_that_does_not_fit_is_refused(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reflow\.checkpoint"):
        child(tmp_path / "nothing")
    other = child(parent).model_copy(update={"seed": 5})
    with pytest.raises(UsageError, match="trained on other data"):
        with_pairs(other, prepare(other), tmp_path)
    digits = small("digits", reflow=child(parent).reflow)
    with pytest.raises(UsageError, match=r"has samples \(2,\)"):
        with_pairs(digits, prepare(digits), tmp_path)
    gaussian = child(saved_gaussian(tmp_path))
    with pytest.raises(UsageError, match="does not say on which"):
        with_pairs(gaussian, prepare(gaussian), tmp_path)
    conditional = small("digits_conditional")
    unconditional = fit(small("digits"), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    with pytest.raises(UsageError, match="takes the condition none, and the data give a class label"):
        with_pairs(reflowed(conditional, unconditional), prepare(conditional), tmp_path)
    recipe = child(parent)
    broken = recipe.model_copy(update={"reflow": recipe.reflow and recipe.reflow.model_copy(update={"solver": "rk9"})})
    with pytest.raises(TrainingError, match="rk9"):
        with_pairs(broken, prepare(broken), tmp_path)


def test_guidance_that_the_parent_cannot_follow_is_refused(parent: Path, tmp_path: Path) -> None:
    recipe = child(parent, guidance=3.0)
    with pytest.raises(UsageError, match="takes no condition"):
        with_pairs(recipe, prepare(recipe), tmp_path)
    recipe = small("digits_conditional", condition_dropout=0.0)
    places = Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0)
    without_null = reflowed(recipe, fit(recipe, places), guidance=3.0)
    with pytest.raises(UsageError, match="without a null condition"):
        with_pairs(without_null, prepare(without_null), tmp_path)


def test_a_reflowed_model_can_be_a_parent(parent: Path, tmp_path: Path) -> None:
    first = fit(child(parent), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    second = child(first)
    data = with_pairs(second, prepare(second), tmp_path)
    assert data.card["reflow"]["data_sha256"] == prepare(second).digest
    other = second.model_copy(update={"seed": 5})
    with pytest.raises(UsageError, match="trained on other data"):
        with_pairs(other, prepare(other), tmp_path)


def test_a_parent_that_changed_since_it_was_pinned_is_refused(parent: Path, tmp_path: Path) -> None:
    place = tmp_path / "parent"
    place.symlink_to(parent)
    recipe = child(place)
    place.unlink()
    place.symlink_to(fit(small(epochs=1), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0)))
    with pytest.raises(UsageError, match="is not that of the recipe"):
        with_pairs(recipe, prepare(recipe), tmp_path)


def test_two_runs_share_the_pairs_that_the_first_one_draws(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second starts in the middle of the first one's solve, and waits."""
    recipe = child(parent)
    data = prepare(recipe)
    solve, solved, digests = reflow.solve, list[int](), list[str]()
    second = Thread(target=lambda: digests.append(with_pairs(recipe, data, tmp_path).digest))

    def meanwhile(velocity: Any, x0: Any, *rest: Any, **more: Any) -> Solution:
        solved.append(len(x0))
        if len(solved) == 1:
            second.start()
            second.join(0.5)
        return solve(velocity, x0, *rest, **more)

    monkeypatch.setattr(reflow, "solve", meanwhile)
    first = with_pairs(recipe, data, tmp_path)
    second.join()
    assert solved == [40]
    assert digests == [first.digest]


@pytest.mark.usefixtures("capsys")  # otherwise the output goes to a file, to which the limit applies too
def test_a_full_disk_keeps_no_part_of_a_part(parent: Path, tmp_path: Path) -> None:
    recipe = child(parent)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(TrainingError, match="make room and run this again"):
            with_pairs(recipe, prepare(recipe), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.glob("pairs-*/*")] == ["lock"]
    assert len(with_pairs(recipe, prepare(recipe), tmp_path).train) == 40


def test_reflow_and_another_coupling_contradict_each_other(parent: Path) -> None:
    with pytest.raises(ValueError, match="leave coupling out"):
        Recipe.model_validate({**child(parent).model_dump(), "coupling": "ot"})


def test_conditions_of_a_file_of_pairs_are_in_their_own_units() -> None:
    entries = NamedCondition.vector(1, mean=[2000.0], scale=[0.25]), NamedCondition.label(3, ("1", "5", "9"))
    given = np.array([[2002.0], [1996.0]]), np.array([9, 1])
    expected = [[0.5], [-1.0]], [2, 0]
    moons = prepare(small())
    for entry, values, taken in zip(entries, given, expected, strict=True):
        data = replace(moons, condition=entry, conditions=None)
        assert _as_taken(Path("pairs.npz"), values, data).tolist() == taken
    with pytest.raises(DataError, match=r"pairs\.npz has the label 2; expected a class label, one of 1, 5, 9"):
        _as_taken(Path("pairs.npz"), np.array([2]), replace(moons, condition=entries[1], conditions=None))
