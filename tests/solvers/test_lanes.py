"""Lanes are independent: random mixes give the same results as each lane alone, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.forms.rows import RowCaller, field_rows
from solvers import SolverError, Status, catalogue, resolve
from solvers.errors import CODES
from solvers.lanes import Admission, Lanes
from tests.solvers import support
from tests.solvers.support import Ended, Watched, gaussian, ones, run, same_bits

FIXED = st.builds(
    lambda solver, steps, grid: {"solver": solver, "steps": steps, "grid": grid},
    st.sampled_from([name for name, entry in catalogue.solvers().items() if not entry.stochastic]),
    st.integers(1, 7),
    st.sampled_from(["uniform", "sway", {"name": "shift", "value": 3.0}]),
)
MULTISTEP = st.builds(
    lambda solver, steps, start: {"solver": solver, "steps": steps, "start": start},
    st.sampled_from(support.MULTISTEP),
    st.integers(1, 7),
    st.sampled_from(["ramp", "rk"]),
)
ADAPTIVE = st.builds(
    lambda solver, rtol, atol, controller, steps, error_control, max_nfe: {
        "solver": solver,
        "rtol": rtol,
        "atol": atol,
        "controller": controller,
        "first_step": steps[0],
        "max_step": steps[1],
        "error_control": error_control,
        "max_nfe": max_nfe if steps[1] is None else 10_000,
    },
    st.sampled_from(support.ADAPTIVE),
    st.sampled_from([1e-1, 1e-3, 1e-5]),
    st.sampled_from([1e-2, 1e-4, 1e-5]),
    st.sampled_from(["paper", "i", "pi"]),
    st.sampled_from([(None, None), (0.02, None), (0.5, None), (None, 0.07), (0.02, 0.1), (None, 2.0)]),
    st.sampled_from(["sample", "sample", "batch"]),
    st.sampled_from([5, 40, 10_000]),
)
SPANS = st.sampled_from([(0.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.3, 0.8)])
JOBS = st.lists(
    st.tuples(FIXED | MULTISTEP | ADAPTIVE, SPANS, st.integers(1, 9), st.integers(0, 99)), min_size=1, max_size=7
)
Job = tuple[dict[str, Any], tuple[float, float], int, int]
Velocity = Callable[[Tensor, Tensor], Tensor]


def _admission(job: Job, owner: int, width: int, dtype: torch.dtype, order: list[int] | None = None) -> Admission:
    request, span, count, seed = job
    x0 = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return Admission(resolve(**request, t_span=span, dtype=dtype), x0 if order is None else x0[order], owner=owner)


def _check_same(together: dict[tuple[int, int], Ended], owner: int, alone: dict[tuple[int, int], Ended]) -> None:
    for (_, index), expected in alone.items():
        found = together[owner, index]
        assert same_bits(found.x, expected.x)
        assert (found.t, found.nfe, found.status) == (expected.t, expected.nfe, expected.status)


def _check_mix(jobs: list[Job], velocity: Velocity, width: int, dtype: torch.dtype) -> None:
    admissions = [_admission(job, owner, width, dtype) for owner, job in enumerate(jobs)]
    together = run(Lanes((width,), dtype), velocity, admissions)
    assert len(together) == sum(job[2] for job in jobs)
    for owner, job in enumerate(jobs):
        slots = None if owner % 2 else max(resolve(**job[0]).rows.slots, 2)
        alone = run(Lanes((width,), dtype, slots=slots), velocity, [_admission(job, owner, width, dtype)])
        _check_same(together, owner, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(jobs=JOBS)
def test_any_mix_gives_what_each_gives_alone(dtype: torch.dtype, jobs: list[Job]) -> None:
    _check_mix(jobs, gaussian, 3, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 37])
@given(jobs=JOBS)
def test_compiled_loops_and_tensor_operations_give_the_same_bits(
    width: int, dtype: torch.dtype, jobs: list[Job]
) -> None:
    admissions = [_admission(job, owner, width, dtype) for owner, job in enumerate(jobs)]
    host = run(Lanes((width,), dtype, compiled=True), gaussian, admissions)
    device = run(Lanes((width,), dtype, compiled=False), gaussian, admissions)
    assert host.keys() == device.keys()
    for key, end in host.items():
        _check_same(device, key[0], {key: end})


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def padded(request: pytest.FixtureRequest) -> tuple[RowCaller, torch.dtype]:
    torch.manual_seed(0)
    module = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=2, time_width=16)).to(request.param).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        parameter.requires_grad_(False)
    stable = field_rows(module, (2,), request.param, max_rows=128)
    assert stable.counts
    return stable, request.param


@given(jobs=JOBS)
@settings(max_examples=10)
def test_any_mix_through_a_padded_network(padded: tuple[RowCaller, torch.dtype], jobs: list[Job]) -> None:
    network, dtype = padded
    _check_mix(jobs, network, 2, dtype)


@given(jobs=JOBS, seed=st.integers(0, 99))
@settings(max_examples=10)
def test_permuting_lanes_permutes_answers(padded: tuple[RowCaller, torch.dtype], jobs: list[Job], seed: int) -> None:
    """For samples under their own error control; jobs and the samples in them are shuffled."""
    network, dtype = padded
    jobs = [job for job in jobs if job[0].get("error_control") != "batch"]
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(job[2]).tolist() for job in jobs]
    plain = run(Lanes((2,), dtype), network, [_admission(job, k, 2, dtype) for k, job in enumerate(jobs)])
    shuffled = [_admission(jobs[k], int(k), 2, dtype, orders[k]) for k in rng.permutation(len(jobs))]
    found = run(Lanes((2,), dtype), network, shuffled)
    for owner, order in enumerate(orders):
        for place, index in enumerate(order):
            _check_same({(0, 0): found[owner, place]}, 0, {(0, 0): plain[owner, index]})


@given(jobs=JOBS)
def test_no_finished_lane_is_ever_asked(jobs: list[Job]) -> None:
    watched = Watched(gaussian, ids=True)
    admissions = [_admission(job, owner, 2, torch.float64) for owner, job in enumerate(jobs)]
    for owner, admission in enumerate(admissions):
        admission.x0[:, 0] = 100 * owner + torch.arange(len(admission.x0))
    ended = run(Lanes((2,), torch.float64), watched, admissions)
    assert {100 * owner + index: end.nfe for (owner, index), end in ended.items() if end.nfe} == dict(watched.by_id)
    assert watched.rows == sum(end.nfe for end in ended.values())
    assert watched.calls == max(end.nfe for end in ended.values())


@given(jobs=JOBS, joins=st.lists(st.integers(0, 30), min_size=7, max_size=7))
def test_lanes_may_join_at_any_tick(jobs: list[Job], joins: list[int]) -> None:
    lanes, tick, together = Lanes((3,)), 0, {}
    waiting = sorted((joins[owner], owner) for owner in range(len(jobs)))
    while waiting or len(lanes):
        while waiting and (waiting[0][0] <= tick or not len(lanes)):
            _, owner = waiting.pop(0)
            lanes.admit([_admission(jobs[owner], owner, 3, torch.float32)])
        parts = [lanes.collect()]
        if len(lanes):
            x, t = lanes.query()
            parts.append(lanes.absorb(gaussian(x, t)))
        for part in parts:
            if part is not None:
                for k, key in enumerate(zip(part.owner.tolist(), part.index.tolist(), strict=True)):
                    together[key] = part.x[k], part.nfe[k], part.status[k]
        tick += 1
    for owner, job in enumerate(jobs):
        alone = run(Lanes((3,)), gaussian, [_admission(job, owner, 3, torch.float32)])
        for key, end in alone.items():
            x, nfe, status = together[key]
            assert same_bits(x, end.x)
            assert (nfe, status) == (end.nfe, CODES[end.status])


def _poisoned(x: Tensor, t: Tensor, value: float) -> Tensor:
    """A field in which the first coordinate says when a trajectory turns bad."""
    bad = t[:, None] > x[:, :1]
    return torch.where(bad, value, torch.cat((0 * x[:, :1], gaussian(x[:, 1:], t)), dim=1))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@given(jobs=JOBS, when=st.sampled_from([-1.0, 0.0, 0.02, 0.5]), place=st.integers(0, 7))
@settings(max_examples=10)
def test_a_bad_lane_never_changes_a_bit_of_another(
    value: float, compiled: bool, jobs: list[Job], when: float, place: int
) -> None:
    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return _poisoned(x, t, value)

    admissions = [_admission(job, owner, 3, torch.float32) for owner, job in enumerate(jobs)]
    for admission in admissions:
        admission.x0[:, 0] = 9.0
    healthy = run(Lanes((3,), compiled=compiled), velocity, admissions)
    bad = _admission(({"solver": "dopri5"}, (0.0, 1.0), 3, 0), 99, 3, torch.float32)
    bad.x0[:, 0] = when
    fixed = _admission(({"solver": "rk4", "steps": 3}, (0.0, 1.0), 2, 1), 98, 3, torch.float32)
    fixed.x0[:, 0] = when
    mixed = [*admissions[:place], bad, *admissions[place:], fixed]
    found = run(Lanes((3,), compiled=compiled), velocity, mixed)
    for (owner, index), end in healthy.items():
        _check_same(found, owner, {(owner, index): end})
    assert {found[99, k].status for k in range(3)} == {Status.NON_FINITE}
    assert {found[98, k].status for k in range(2)} == {Status.NON_FINITE}
    assert all(torch.isfinite(found[99, k].x).all() for k in range(3))


@pytest.mark.parametrize("healthy", [{"solver": "euler", "steps": 3}, {"solver": "ab4", "steps": 9}, {}])
def test_a_healthy_lane_in_a_bad_lanes_former_row(healthy: dict[str, Any]) -> None:
    """The bad lane's K was full of NaN; none of it remains in the row that another lane gets next."""
    lanes = Lanes((2,))
    bad = Admission(resolve(solver="rk4", steps=1), torch.full((1, 2), math.nan))
    other = Admission(resolve(solver="rk4", steps=50), torch.ones(1, 2), owner=1)
    lanes.admit([bad, other])
    finished = None
    for _ in range(4):
        assert finished is None
        x, t = lanes.query()
        finished = lanes.absorb(gaussian(x, t))
    assert finished is not None
    assert finished.owner.tolist() == [0]
    assert torch.isfinite(lanes.states.k).all()
    newcomer = Admission(resolve(**healthy), torch.ones(2, 2), owner=2)
    found = run(lanes, gaussian, [newcomer])
    alone = run(Lanes((2,)), gaussian, [newcomer])
    _check_same(found, 2, alone)
    assert found[1, 0].status == Status.SUCCESS


def test_a_rejected_lane_goes_on_without_a_trace_of_its_nan() -> None:
    """NaN in a later stage, then a smaller step: the lane recovers and its velocities are clean."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return torch.where(velocity_asked() == 3, math.nan, gaussian(x, t))

    count = 0

    def velocity_asked() -> Tensor:
        nonlocal count
        count += 1
        return torch.tensor(count)

    lanes = Lanes((1,), torch.float64)
    ended = run(lanes, velocity, [Admission(resolve(first_step=0.1, dtype=torch.float64), ones())])
    assert ended[0, 0].status == Status.SUCCESS
    assert ended[0, 0].x.item() == pytest.approx(2.5, abs=1e-4)


def test_stop_ends_one_owner_and_reports_where_it_stood() -> None:
    lanes = Lanes((1,), torch.float64)
    solve = resolve(solver="euler", steps=10, dtype=torch.float64)
    lanes.admit([Admission(solve, ones(3), owner=1), Admission(solve, ones(2), owner=2)])
    for _ in range(4):
        x, _ = lanes.query()
        assert lanes.absorb(-x) is None
    assert lanes.shares().min() == pytest.approx(0.4)
    lanes.stop(1, Status.CANCELLED)
    finished = lanes.collect()
    assert finished is not None
    assert finished.owner.tolist() == [1] * 3
    assert finished.t.tolist() == [0.4] * 3
    assert finished.nfe.tolist() == [4] * 3
    assert finished.grid_steps.tolist() == [4] * 3
    assert finished.x.flatten().tolist() == pytest.approx([0.9**4] * 3)
    assert {CODES[Status.CANCELLED]} == set(finished.status.tolist())
    assert len(lanes) == 2
    left = run(lanes, lambda x, t: -x, [])
    assert left[2, 0].x.item() == pytest.approx(0.9**10)


def test_first_index_and_empty_admissions() -> None:
    lanes = Lanes((1,), torch.float64)
    lanes.admit([Admission(resolve(), ones(0))])
    assert len(lanes) == 0
    assert lanes.collect() is None
    ended = run(lanes, gaussian, [Admission(resolve(), ones(2), owner=5, first_index=40)])
    assert sorted(ended) == [(5, 40), (5, 41)]


@pytest.mark.parametrize("wrong", [torch.zeros(2, 2), torch.zeros(3, 2).double(), torch.zeros(3, 2, device="meta")])
def test_velocities_that_do_not_fit_are_refused_and_change_nothing(wrong: torch.Tensor) -> None:
    lanes = Lanes((2,))
    lanes.admit([Admission(resolve(solver="euler", steps=1), torch.ones(3, 2))])
    lanes.query()
    with pytest.raises(SolverError, match="must return a tensor like x"):
        lanes.absorb(wrong)
    finished = lanes.absorb(torch.ones(3, 2))
    assert finished is not None
    assert torch.equal(finished.x, torch.full((3, 2), 2.0))


@pytest.mark.parametrize("compiled", [True, False])
def test_large_rooms_are_given_back_and_small_ones_hold_nothing_of_before(compiled: bool) -> None:
    lanes = Lanes((100,), compiled=compiled)
    solve = resolve(solver="unipc3", steps=3)
    for samples, kept in ((2, True), (5000, False), (2, True)):
        run(lanes, lambda x, t: torch.full_like(x, torch.inf), [Admission(solve, torch.ones(samples, 100))])
        assert bool(lanes.states._room_k.nbytes) is kept
        found = run(lanes, lambda x, t: -x, [Admission(solve, torch.ones(1, 100))])
        expected = run(Lanes((100,), compiled=compiled), lambda x, t: -x, [Admission(solve, torch.ones(1, 100))])
        assert torch.equal(found[0, 0].x, expected[0, 0].x)
