"""Traces: every attempt, in order, with a stiffness signal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from solvers import Status, catalogue, integrate
from solvers.state import LANE
from solvers.trace import COLUMNS, StepLog, StepTrace
from tests.solvers.support import ADAPTIVE, FIFTH_ORDER, decay, gaussian, ones, oscillator


def test_the_log_keeps_histories_longer_than_a_block_apart() -> None:
    log = StepLog()
    places = log.open(3)
    lanes = np.zeros(3, dtype=LANE)
    lanes["log"] = places
    for k in range(2 * COLUMNS + 5):
        index = np.arange(0 if k < 40 else 1, 3)
        lanes["h"] = k + 1 + 100 * places
        log.record(lanes, index, np.ones(len(index)), np.zeros(len(index)))
    counts, values = log.close(lanes)
    assert counts.tolist() == [40, 2 * COLUMNS + 5, 2 * COLUMNS + 5]
    ends = np.cumsum(counts)
    for place, count, part in zip(places, counts, np.split(values, ends[:-1]), strict=True):
        assert part[:, 1].tolist() == [k + 1 + 100 * place for k in range(count)]
    again = log.open(3)
    assert sorted(again) == sorted(places)
    lanes["log"] = again
    assert log.close(lanes)[0].tolist() == [0, 0, 0]


def test_a_fixed_trace_is_the_grid() -> None:
    trace = integrate(decay, ones(3), solver="rk4", steps=4).trace
    assert trace.sample.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert trace.t.tolist() == [0.0, 0.25, 0.5, 0.75] * 3
    assert trace.h.tolist() == [0.25] * 12
    assert trace.accepted.all()
    assert np.isnan(trace.error).all()
    assert len(StepTrace.empty()) == 0


@pytest.mark.parametrize("t_span", [(0.0, 1.0), (1.0, 0.0), (0.3, 0.8)])
@pytest.mark.parametrize("solver", ADAPTIVE)
def test_accepted_steps_join_up_and_count_the_calls(solver: str, t_span: tuple[float, float]) -> None:
    x0 = torch.linspace(-3, 3, 20).double()[:, None]
    solution = integrate(lambda x, t: gaussian(x, t, s=0.05), x0, solver=solver, t_span=t_span, rtol=1e-8, atol=1e-8)
    trace, stages = solution.trace, catalogue.find(solver).tableau.stages
    assert (np.diff(trace.sample) >= 0).all()
    for sample in range(20):
        mine = trace.sample == sample
        t, h, accepted = trace.t[mine], trace.h[mine], trace.accepted[mine]
        assert t[0] == t_span[0]
        assert np.allclose(t[1:], np.where(accepted, t + h, t)[:-1], atol=1e-15)
        assert t[-1] + h[-1] == pytest.approx(t_span[1], abs=1e-15)
        assert solution.nfe[sample] == 2 + (stages - 1) * mine.sum()
        assert np.array_equal(accepted, trace.error[mine] <= 1)


def test_rejected_steps_are_there() -> None:
    trace = integrate(lambda x, t: -50 * x, ones(), first_step=0.5, rtol=1e-6, atol=1e-6).trace
    assert not trace.accepted[0]
    assert (trace.t[0], trace.h[0], trace.t[1]) == (0.0, 0.5, 0.0)
    assert trace.error[0] > 1


def test_non_finite_attempts_have_infinite_error() -> None:
    solution = integrate(lambda x, t: torch.where(t[:, None] > 0.5, float("nan"), -x), ones(), first_step=0.9)
    assert np.isinf(solution.trace.error[~solution.trace.accepted]).any()
    assert solution.status == (Status.NON_FINITE,)


@pytest.mark.parametrize("rate", [1.0, 30.0])
@pytest.mark.parametrize("solver", FIFTH_ORDER)
def test_the_stiffness_signal_is_step_times_rate_on_decay(solver: str, rate: float) -> None:
    solution = integrate(lambda x, t: -rate * x, ones(2, 3), solver=solver, rtol=1e-4, atol=1e-4, t_span=(0.0, 3.0))
    trace = solution.trace
    assert np.allclose(trace.stiffness, rate * trace.h, rtol=1e-6)


def test_the_stiffness_signal_of_a_rotation() -> None:
    trace = integrate(oscillator, torch.tensor([[1.0, 0.0]]).double(), t_span=(1.0, 0.0)).trace
    assert np.allclose(trace.stiffness, np.abs(trace.h), rtol=1e-6)
    assert np.isnan(integrate(decay, ones(), solver="bosh3").trace.stiffness).all()
