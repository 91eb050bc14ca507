"""Runs that differ from the paper's: conditions, couplings, schedules."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.architectures.unet import UNetSize
from models.checkpoint.loading import load
from models.conditions import NamedCondition
from training.__main__ import main
from training.config import CONFIGS, Recipe, load_recipe
from training.data import prepare
from training.data_config import DATASETS
from training.errors import UsageError
from training.fit import Options, fit, new_trainer
from training.flow_matching import BINS, Validation, optimal_coupling
from training.trainer import Trainer

ALL = {
    "schedule": "cosine",
    "warmup": 0.5,
    "clip": 0.5,
    "coupling": "ot",
    "patience": 1.0,
    "condition_dropout": 0.3,
    "ema": 0.9,
}


def recipe(**fields: Any) -> Recipe:
    network = {"hidden": 8, "blocks": 1, "time_width": 4}
    data = {"name": "digits", "held_out": 1650, "conditional": True}
    content = {"name": "tiny", "epochs": 2, "batch_size": 64, "data": data, "network": network, **ALL, **fields}
    return Recipe.model_validate(content)


def made(recipe: Recipe) -> Trainer:
    return new_trainer(recipe, prepare(recipe), torch.device("cpu"))


@pytest.mark.parametrize("name", ["moons", "circles", "digits", "mnist"])
def test_the_recipes_of_known_data_follow_the_study(name: str):
    recipe = load_recipe(CONFIGS / f"{name}.toml")
    assert recipe.schedule == ("constant" if name == "digits" else "cosine")
    assert recipe.times == ("logit_normal" if name in ("digits", "mnist") else "uniform")
    assert recipe.coupling == ("ot" if name in ("circles", "mnist") else "independent")
    assert recipe.ema == {"digits": 0.998, "mnist": 0.999}.get(name, 0.0)
    assert recipe.epochs == (100 if name == "mnist" else 300)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_only_the_papers_recipes_have_its_frequency(path: Path) -> None:
    paper = path.stem.endswith("_paper")
    assert load_recipe(path).network.model_dump()["max_frequency"] == (100.0 if paper else 6.0)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_ships_is_valid(path: Path):
    assert load_recipe(path).data.name in DATASETS


def test_with_everything_switched_on_a_resumed_run_ends_at_the_same_bits():
    whole = made(recipe())
    assert whole.run()
    saves: list[Any] = []
    first = made(recipe())
    assert not first.run(save=lambda *state: saves.append(state), stopping=lambda: first.step == 2)
    second = made(recipe())
    tensors, header = saves[-1]
    second.restore(tensors, header)
    assert second.run()
    left, right = whole.state(), second.state()
    assert all(torch.equal(left[0][name], right[0][name]) for name in left[0])
    assert left[1].losses == right[1].losses
    assert left[1].validations == right[1].validations
    assert left[1].best == right[1].best
    assert left[1].best is not None
    assert [step for step, _ in left[1].validations] == list(range(1, whole.total_steps + 1))
    assert all(len(losses) == BINS and np.isfinite(losses).all() for _, losses in left[1].validations)


def test_a_conditional_model_is_published_with_its_condition(tmp_path: Path):
    folder = fit(recipe(), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    checkpoint = load(folder)
    assert checkpoint.card.condition == NamedCondition.label(classes=10)
    assert checkpoint.card.training["validation"]
    need = fit(recipe(condition_dropout=0.0), Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    assert load(need).card.condition == NamedCondition.label(classes=10, null=False)


def test_dropout_shows_the_null_as_often_as_it_says():
    run = made(recipe(condition_dropout=0.25))
    labels = torch.arange(10_000) % 10
    shown = run._shown(labels, run.data)
    dropped = shown == 10
    assert 0.22 < dropped.float().mean() < 0.28
    assert torch.equal(shown[~dropped], labels[~dropped])
    assert torch.equal(run._shown(labels, run.data), shown)


def test_the_schedule_rises_and_falls():
    run = made(recipe(epochs=20, warmup=1 / 12))
    rates = []
    for step in range(run.total_steps):
        run.step = step
        rates.append(run.learning_rate)
    assert rates[0] == pytest.approx(1e-3 / 5, rel=0.01)
    assert max(rates) == rates[4]
    assert rates[-1] < 2e-5
    assert made(recipe(schedule="constant", warmup=0.0)).learning_rate == 1e-3


@pytest.mark.parametrize("warmup", [0.05, 0.99])
def test_the_rate_reaches_its_height_in_a_run_of_any_length(warmup: float):
    for epochs in (1, 7):
        run = made(recipe(epochs=epochs, schedule="constant", warmup=warmup))
        run.step = run.total_steps - 1
        assert run.learning_rate == 1e-3


def test_the_gradient_is_cut():
    run = made(recipe(clip=1e-3))
    run.run(stopping=lambda: True)
    squares = [p.grad.square().sum() for p in run.network.parameters() if p.grad is not None]
    assert float(torch.stack(squares).sum().sqrt()) == pytest.approx(1e-3, rel=1e-3)


def test_the_coupling_is_the_best_of_all_pairings():
    source = np.random.default_rng(0)
    x0, x1 = source.normal(size=(2, 5, 2)).astype(np.float32)
    costs = {p: float(np.square(x0[list(p)] - x1).sum()) for p in itertools.permutations(range(5))}
    assert tuple(optimal_coupling(x0, x1).tolist()) == min(costs, key=lambda p: costs[p])


def test_a_coupling_exchanges_noise_among_equal_conditions_only():
    source = np.random.default_rng(0)
    x0, x1 = source.normal(size=(2, 40, 2)).astype(np.float32)
    labels = source.integers(0, 3, 40)
    chosen = optimal_coupling(x0, x1, labels)
    assert (labels[chosen] == labels).all()
    for label in range(3):
        own = labels == label
        alone = np.flatnonzero(own)[optimal_coupling(x0[own], x1[own])]
        assert np.array_equal(chosen[own], alone)
    vectors = np.stack([labels, labels % 2], 1).astype(np.float32)
    assert np.array_equal(optimal_coupling(x0, x1, vectors), chosen)
    assert np.array_equal(optimal_coupling(x0, x1, source.random((40, 1))), np.arange(40))


def test_the_noise_of_each_class_stays_standard_normal():
    """If the whole batch were paired, the left class would get the left half of the noise: mean -0.8."""
    source = np.random.default_rng(0)
    labels = np.arange(64) % 2
    got: list[np.ndarray] = []
    for _ in range(100):
        x0 = source.normal(size=(64, 1)).astype(np.float32)
        x1 = (6.0 * labels - 3.0 + 0.3 * source.normal(size=64)).astype(np.float32)[:, None]
        got.append(x0[optimal_coupling(x0, x1, labels)])
    left = np.concatenate([x0[labels == 0] for x0 in got])
    assert abs(left.mean()) < 4 / np.sqrt(len(left))
    assert abs(left.std() - 1) < 4 / np.sqrt(len(left))


def test_a_run_pairs_within_its_classes(monkeypatch: pytest.MonkeyPatch):
    run, given = made(recipe()), list[Any]()

    def spy(x0: Any, x1: Any, conditions: Any) -> Any:
        given.append(conditions)
        return optimal_coupling(x0, x1, conditions)

    monkeypatch.setattr("training.trainer.optimal_coupling", spy)
    rows = torch.arange(64)
    run._train_step(rows)
    assert run._conditions is not None
    assert np.array_equal(given[0], run._conditions[rows].numpy())


def test_pairing_that_no_row_could_take_part_in_is_refused(tmp_path: Path):
    source = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=source.normal(size=(40, 2)), angle=source.random((40, 1)))
    data = {"name": "vectors", "path": str(tmp_path / "rows.npz"), "columns": ["x"], "condition": ["angle"]}
    with pytest.raises(UsageError, match="no two training samples have the same condition, so none could be paired"):
        made(recipe(data=data))
    assert made(recipe(data=data, coupling="independent")).total_steps


def test_the_validation_loss_is_that_of_each_part_of_time():
    class Zero(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.where(t[:, None] < 0.5, 0 * x, 100 + 0 * x)

    validation = Validation.of(0, np.zeros((7, 2), np.float32), None, torch.device("cpu"))
    losses = validation.losses(Zero(), {})
    assert all(0.7 < loss < 1.3 for loss in losses[:5])  # the mean square of the noise
    assert all(9000 < loss < 11000 for loss in losses[5:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "moons", "--data", "x.npy"], "--data is for your own data"),
        (["fit", "digits", "--label", "x"], "--label is for fit vectors"),
        (["fit", "circles", "--conditional"], "which have no classes"),
        (["fit", "vectors", "--conditional"], "name the labels with --label"),
        (["fit", "moons", "--coupling", "best"], "invalid choice: 'best'"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_unet_on_points_is_refused(recipe: Recipe):
    from training.errors import DataError

    with pytest.raises(DataError, match="needs pictures, and the moons samples are vectors"):
        prepare(recipe.model_copy(update={"network": UNetSize()}))
