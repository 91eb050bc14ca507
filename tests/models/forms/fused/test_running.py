"""Lanes that a fused network runs on its own end with the same bits as call by call."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conditions import NamedCondition
from models.forms.fused.residual_mlp import FusedResidualMLP
from models.noise import noise
from models.velocity import VelocityError
from solvers import resolve
from solvers.catalogue import solvers
from solvers.lanes import Admission, Finished, Lanes
from solvers.trace import COLUMNS

LABELS, VECTORS = NamedCondition.label(classes=3), NamedCondition.vector(width=5)


def fused(condition: NamedCondition | None = None) -> FusedResidualMLP:
    torch.manual_seed(0)
    return FusedResidualMLP(
        ResidualMLP(ResidualMLPConfig(dim=2, hidden=40, blocks=2, condition=condition)).requires_grad_(False)
    )


def admitted(condition: NamedCondition | None, saving: bool = True) -> tuple[Lanes, Callable[[], Tensor | None]]:
    """Lanes of every solver, some under batch error control, some saving if requested; and each lane's condition."""
    lanes, admissions = Lanes((2,)), []
    for owner, name in enumerate(solvers()):
        admissions.append(Admission(resolve(solver=name, steps=5 + owner), noise(owner, 0, 3, (2,)), owner))
    grid = np.array([0.25, 1.0]) if saving else None
    admissions.append(Admission(resolve(solver="euler", steps=4), noise(90, 0, 2, (2,)), 90, 0, grid))
    adaptive: list[dict[str, Any]] = [{}, {"rtol": 1e-3}, {"error_control": "batch"}, {"max_nfe": 20}]
    for owner, settings in enumerate(adaptive, 91):
        admissions.append(Admission(resolve(solver="dopri5", **settings), noise(owner, 0, 3, (2,)), owner, 0, grid))
    lanes.admit(admissions)
    examples = None if condition is None else condition.examples(97, torch.float32)

    def conditions() -> Tensor | None:
        owner = torch.from_numpy((lanes.records["owner"] * 3 + lanes.records["index"]) % 97)
        return None if examples is None else examples[owner]

    return lanes, conditions


def outcome(lanes: Lanes, turn: Callable[[], Finished | None]) -> dict[tuple[int, int], tuple[Any, ...]]:
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    while len(lanes):
        if (finished := turn()) is None:
            continue
        columns: list[NDArray[Any]] = [
            finished.t,
            finished.nfe,
            finished.status,
            finished.attempts,
            finished.grid_steps,
        ]
        for lane, (owner, index) in enumerate(zip(finished.owner.tolist(), finished.index.tolist(), strict=True)):
            found[owner, index] = (*finished.x[lane].tolist(), *(column[lane] for column in columns))
    for saved in lanes.take_saved():
        for owner, index, place, x in zip(saved.owner, saved.index, saved.place, saved.x.tolist(), strict=True):
            found[int(owner), int(index)] += (int(place), *x)
    return dict(sorted(found.items()))


@pytest.mark.parametrize("condition", [None, LABELS, VECTORS])
@pytest.mark.parametrize(("most", "more"), [(1, 0), (3, 0), (1000, 0), (3, 3), (1000, 5), (1000, 1000)])
@pytest.mark.parametrize("saving", [True, False])
def test_running_gives_the_bits_of_single_calls(
    saving: bool, most: int, more: int, condition: NamedCondition | None
) -> None:
    field = fused(condition)
    lanes, conditions = admitted(condition, saving)

    def call() -> Finished | None:
        given = conditions()
        x, t = lanes.query()
        return lanes.absorb(field(x, t, given))

    expected = outcome(lanes, call)
    lanes, conditions = admitted(condition, saving)
    made = []

    def run() -> Finished | None:
        runner = field.runner(conditions(), rows=len(lanes))
        assert runner is not None
        finished, calls, _ = lanes.run(runner, most, more)
        made.append(calls)
        return finished

    assert outcome(lanes, run) == expected
    assert max(made) <= most
    assert sum(made) == max(int(value[3]) for value in expected.values())


@pytest.mark.parametrize(("solver", "evaluations"), [("rk4", 80), ("sde", 20), ("sde_heun", 40)])
def test_a_plan_alone_needs_one_call(solver: str, evaluations: int) -> None:
    field, lanes = fused(), Lanes((2,))
    lanes.admit([Admission(resolve(solver=solver, steps=20), noise(0, 0, 4, (2,)))])
    runner = field.runner(rows=4)
    assert runner is not None
    finished, calls, _ = lanes.run(runner, 1000)
    assert finished is not None
    assert calls == evaluations
    assert not len(lanes)


@pytest.mark.parametrize(("more", "ended", "calls"), [(0, 1, 10), (1, 2, 11), (4, 3, 14), (50, 4, 20)])
def test_lanes_that_have_ended_wait_for_those_that_end_soon(more: int, ended: int, calls: int) -> None:
    field, lanes = fused(), Lanes((2,))
    for owner, steps in enumerate((10, 11, 14, 20)):
        lanes.admit([Admission(resolve(solver="euler", steps=steps), noise(owner, 0, 1, (2,)), owner)])
    runner = field.runner(rows=4)
    assert runner is not None
    finished, made, rows = lanes.run(runner, 1000, more)
    assert finished is not None
    assert rows == finished.nfe.sum() + lanes.records["nfe"].sum()
    assert (finished.owner.tolist(), made) == (list(range(ended)), calls)
    assert finished.nfe.tolist() == [10, 11, 14, 20][:ended]
    assert lanes.records["nfe"].tolist() == [calls] * (4 - ended)


def test_a_lane_that_is_not_finite_ends_alone() -> None:
    field, lanes = fused(), Lanes((2,))
    start = noise(0, 0, 4, (2,))
    start[2] = torch.nan
    lanes.admit([Admission(resolve(solver="rk4", steps=20), start)])
    runner = field.runner(rows=4)
    assert runner is not None
    finished, calls, _ = lanes.run(runner, 1000)
    assert finished is not None
    assert (finished.index.tolist(), calls, len(lanes)) == ([2], 4, 3)


def test_a_label_that_there_is_not_is_refused_and_nothing_moves() -> None:
    field, lanes = fused(LABELS), Lanes((2,))
    lanes.admit([Admission(resolve(solver="rk4", steps=20), noise(0, 0, 2, (2,)))])
    before = lanes.records.copy()
    runner = field.runner(torch.tensor([0, 7]), rows=2)
    assert runner is not None
    with pytest.raises(VelocityError, match="label"):
        lanes.run(runner, 1000)
    assert np.array_equal(lanes.records, before)


def test_many_rows_are_left_to_several_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert fused().runner(rows=96) is None
        assert fused().runner(rows=95) is not None
    finally:
        torch.set_num_threads(before)


def test_states_that_are_not_in_compiled_loops_have_no_runner() -> None:
    field, lanes = fused(), Lanes((2,), compiled=False)
    lanes.admit([Admission(resolve(solver="rk4", steps=2), noise(0, 0, 2, (2,)))])
    runner = field.runner(rows=2)
    assert runner is not None
    with pytest.raises(TypeError, match="no runner"):
        lanes.run(runner, 10)


def test_error_control_needs_one_call_for_each_block_of_its_log() -> None:
    """A place of the log holds 32 attempts; the steps are those of single calls."""
    field, plan = fused(), resolve(solver="dopri5", max_step=0.01)
    whole, single = Lanes((2,)), Lanes((2,))
    for lanes in (whole, single):
        lanes.admit([Admission(plan, noise(0, 0, 3, (2,)))])
    runner, turns, finished = field.runner(rows=3), 0, None
    assert runner is not None
    while len(whole) == 3:
        finished, _, _ = whole.run(runner, 10_000)
        turns += 1
    expected = None
    while len(single) == 3:
        expected = single.absorb(field(*single.query()))
    assert finished is not None
    assert expected is not None
    assert np.array_equal(finished.attempts, expected.attempts)
    assert np.array_equal(finished.steps, expected.steps)
    assert turns == 1 + finished.attempts[0] // COLUMNS
    assert finished.attempts[0] > 3 * COLUMNS


def test_a_plan_and_error_control_side_by_side_return_only_when_a_lane_ends() -> None:
    field, lanes = fused(), Lanes((2,))
    lanes.admit([Admission(resolve(solver="dopri5"), noise(0, 0, 1, (2,)), 0)])
    lanes.admit([Admission(resolve(solver="euler", steps=500), noise(1, 0, 1, (2,)), 1)])
    ended = []
    while len(lanes):
        runner = field.runner(rows=len(lanes))
        assert runner is not None
        finished, _, _ = lanes.run(runner, 10_000)
        assert finished is not None
        ended += finished.owner.tolist()
    assert ended == [0, 1]
