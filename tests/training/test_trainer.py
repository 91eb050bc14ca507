import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from training.config import Recipe
from training.data import prepare
from training.errors import StateError, TrainingError
from training.fit import new_network, new_trainer
from training.flow_matching import Validation
from training.state import Header
from training.trainer import Trainer, average_decay

State = tuple[dict[str, torch.Tensor], Header]


def trainer(recipe: Recipe) -> Trainer:
    data = prepare(recipe)
    return Trainer(recipe, new_network(recipe, data), data, torch.device("cpu"))


def assert_same(a: Trainer, b: Trainer) -> None:
    (left, first), (right, second) = a.state(), b.state()
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    assert first.model_copy(update={"seconds": 0}) == second.model_copy(update={"seconds": 0})


def test_seed_decides_the_run(recipe: Recipe):
    runs = [trainer(recipe), trainer(recipe), trainer(recipe.model_copy(update={"seed": 1}))]
    for run in runs:
        assert run.run()
        assert run.step == 16
    assert_same(runs[0], runs[1])
    assert runs[0].last_loss != runs[2].last_loss


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_stopping_at_any_step_and_going_on_changes_no_bit(recipe: Recipe, ema: float):
    recipe = recipe.model_copy(update={"ema": ema})
    whole = trainer(recipe)
    whole.run()
    for step in (1, 3, 4, 7, 15, 16):
        first = trainer(recipe)
        states: list[State] = []
        complete = first.run(
            save=lambda *state, s=states: s.append(state), stopping=lambda t=first, s=step: t.step == s
        )
        assert complete is (step == 16)
        second = trainer(recipe)
        second.restore(*states[-1])
        assert second.step == step
        assert second.run()
        assert_same(whole, second)


def test_every_sample_is_seen_once_an_epoch_in_a_new_order(recipe: Recipe, monkeypatch: pytest.MonkeyPatch):
    run = trainer(recipe)
    seen: list[int] = []
    step = run._train_step
    monkeypatch.setattr(run, "_train_step", lambda rows: (seen.extend(rows.tolist()), step(rows)))
    run.run()
    assert [sorted(seen[begin : begin + 60]) for begin in range(0, 240, 60)] == [list(range(60))] * 4
    assert seen[:60] != seen[60:120], "each epoch has an order of its own"


def test_average_is_the_moving_average_of_the_weights(recipe: Recipe):
    run = trainer(recipe)
    name, parameter = next(iter(run.network.named_parameters()))
    average = parameter.detach().clone()
    steps = itertools.count()

    def follow(loss: float | None) -> None:
        average.lerp_(parameter.detach(), 1 - average_decay(recipe.ema, next(steps)))

    run.run(follow)
    assert torch.allclose(dict(run.published().named_parameters())[name], average, atol=1e-6)
    assert not torch.equal(average, parameter)


@pytest.mark.parametrize("steps", [16, 300, 20_000])
def test_the_average_forgets_the_initial_weights(steps: int):
    """What is left of them is the product of the decays; with 0.999 alone it would be 74 % after 300 steps."""
    left = math.prod(average_decay(0.999, step) for step in range(steps))
    assert left < 1e-6
    assert average_decay(0.999, 10**6) == 0.999


def test_a_short_run_is_published_as_trained_and_judged_by_what_is_published(recipe: Recipe):
    """With a decay of 0.9999, half of what a run of 16 steps published was its initial weights."""
    recipe = recipe.model_copy(update={"ema": 0.9999, "learning_rate": 1e-2, "epochs": 40})
    data = prepare(recipe)
    runs = [new_trainer(recipe.model_copy(update={"ema": ema}), data, torch.device("cpu")) for ema in (0.9999, 0.0)]
    validation = Validation.of(recipe.seed, data.reference, None, torch.device("cpu"))
    at_first = np.mean(validation.losses(runs[0].network, {}))
    for run in runs:
        run.run()
        assert run.held_out_loss == pytest.approx(np.mean(validation.losses(run.published(), {})), rel=1e-6)
    averaged, last = (run.held_out_loss for run in runs)
    assert averaged is not None
    assert last is not None
    assert averaged < last + 0.1 * (at_first - last)


def overfitting(recipe: Recipe, **changes: Any) -> Trainer:
    """A run on ten points, whose held-out loss soon rises."""
    network = recipe.network.model_copy(update={"hidden": 64, "time_width": 16})
    more = {"network": network, "learning_rate": 1e-2, "epochs": None, "steps": 400, "patience": 0.2, **changes}
    recipe = recipe.model_copy(update=more)
    data = prepare(recipe.model_copy(update={"data": recipe.data.model_copy(update={"samples": 10})}))
    return new_trainer(recipe, data, torch.device("cpu"))


def test_a_run_ends_when_its_held_out_loss_rises_and_publishes_the_best(recipe: Recipe):
    run = overfitting(recipe)
    assert run.run()
    steps, losses = zip(*((step, np.mean(by_time)) for step, by_time in run.validations), strict=True)
    assert steps == tuple(range(20, run.step + 1, 20))
    assert run.best is not None
    assert run.best == (steps[int(np.argmin(losses))], min(losses))
    assert run.step == run.best[0] + 80 < run.total_steps
    assert run._validation is not None
    assert np.mean(run._validation.losses(run.published(), {})) == pytest.approx(min(losses), rel=1e-6)
    assert run.held_out_loss == min(losses) < losses[-1]


def test_a_resumed_run_ends_at_the_same_step_with_the_same_best_weights(recipe: Recipe):
    whole = overfitting(recipe)
    whole.run()
    assert whole.best is not None
    for step in (whole.best[0] - 1, whole.best[0] + 3, whole.step):
        first, states = overfitting(recipe), list[State]()
        first.run(save=lambda *state, s=states: s.append(state), stopping=lambda t=first, s=step: t.step == s)
        second = overfitting(recipe)
        second.restore(*states[-1])
        assert second.run()
        assert_same(whole, second)


def test_a_run_of_steps_may_end_within_an_epoch(recipe: Recipe):
    run = trainer(recipe.model_copy(update={"epochs": None, "steps": 6}))
    assert run.run()
    assert (run.step, len(run.losses)) == (6, 2)
    short = trainer(recipe.model_copy(update={"epochs": None, "steps": 1}))
    assert short.run()
    assert short.last_loss is not None


def test_without_ema_the_last_weights_are_published(recipe: Recipe):
    run = trainer(recipe.model_copy(update={"ema": 0.0}))
    run.run()
    for published, trained in zip(run.published().parameters(), run.network.parameters(), strict=True):
        assert torch.equal(published, trained)
        assert not published.requires_grad


def test_training_lowers_the_loss(recipe: Recipe):
    run = trainer(recipe.model_copy(update={"epochs": 150, "learning_rate": 1e-2}))
    losses: list[float | None] = []
    run.run(losses.append)
    first, last = losses[4], losses[-1]
    assert first is not None
    assert last is not None
    assert last < 0.8 * first


@pytest.mark.parametrize("where", ["data", "weights"])
def test_a_lost_number_stops_the_run_and_is_never_saved(recipe: Recipe, where: str):
    run = trainer(recipe)
    saves: list[Any] = []

    def spoil() -> bool:
        if run.step == 5:
            (run.data if where == "data" else next(run.network.parameters()).data).fill_(float("nan"))
        return run.step == 6  # asks for a save in the middle of an epoch

    with pytest.raises(TrainingError, match=r"not finite at step 6 \(epoch 2\); learning_rate is 0.001, try 0.0001"):
        run.run(save=lambda *state: saves.append(state), stopping=spoil)
    assert not saves


def test_a_state_of_other_data_or_another_network_is_refused(recipe: Recipe):
    run = trainer(recipe)
    run.run(stopping=lambda: True)
    tensors, header = run.state()
    with pytest.raises(StateError, match="different data"):
        trainer(recipe).restore(tensors, header.model_copy(update={"data": "others"}))
    del tensors[sorted(tensors)[0]]
    with pytest.raises(StateError, match="does not fit"):
        trainer(recipe).restore(tensors, header)


@pytest.mark.parametrize("step", [10**15, 17, 12, 3])
def test_a_state_of_an_invented_step_is_refused(recipe: Recipe, step: int):
    run = trainer(recipe)
    run.run(stopping=lambda: run.step == 8)
    tensors, header = run.state()
    with pytest.raises(StateError, match=f"the saved state says step {step}"):
        trainer(recipe).restore(tensors, header.model_copy(update={"step": step}))
    losses = [0.1] * (step // run.steps_per_epoch) if step <= 16 else []
    with pytest.raises(StateError, match=f"the saved state says step {step}"):
        trainer(recipe).restore(tensors, header.model_copy(update={"step": step, "losses": losses}))
    trainer(recipe).restore(tensors, header)


def test_a_header_has_no_negative_step(recipe: Recipe):
    _, header = trainer(recipe).state()
    with pytest.raises(ValidationError):
        Header.model_validate(header.model_dump() | {"step": -5})
