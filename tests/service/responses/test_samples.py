"""Traces in responses: none, summary, full."""

import numpy as np
import pytest

from service.responses.samples import BINS, QUANTILES, view
from solvers import resolve
from solvers.trace import StepTrace

ADAPTIVE = resolve(solver="dopri5")
PLAN = resolve(solver="rk4", steps=4)


def _trace(sample: list[int], t: list[float], h: list[float], accepted: list[bool]) -> StepTrace:
    n = len(sample)
    return StepTrace(
        np.array(sample), np.array(t), np.array(h), np.full(n, 0.5), np.array(accepted), np.full(n, np.nan)
    )


def test_none() -> None:
    assert view("none", ADAPTIVE, StepTrace.empty()) is None


def test_summary_of_a_grid_needs_no_trace() -> None:
    found = view("summary", PLAN, StepTrace.empty())
    assert found is not None
    assert found["t"].tolist() == [0.0, 0.25, 0.5, 0.75]
    assert "quantiles" not in found


def test_full_is_everything() -> None:
    trace = _trace([0, 0, 1], [0, 0.5, 0], [0.5, 0.5, 1], [True, True, True])
    found = view("full", ADAPTIVE, trace)
    assert found is not None
    assert found["sample"].tolist() == [0, 0, 1]
    assert "quantiles" not in found


def test_adaptive_summary() -> None:
    trace = _trace([0, 0, 0, 1], [0.0, 0.0, 0.4, 0.01], [0.9, 0.4, 0.6, 0.2], [False, True, True, True])
    found = view("summary", ADAPTIVE, trace)
    assert found is not None
    assert found["h"].tolist() == [0.9, 0.4, 0.6]
    q50 = found.get("quantiles", {})["q50"]
    assert len(q50) == BINS
    assert q50[0] == pytest.approx(0.3)  # of 0.4 and 0.2; the rejected 0.9 does not count
    assert q50[8] == pytest.approx(0.6)
    assert np.isnan(q50).sum() == BINS - 2


def test_backward_summary_uses_sizes() -> None:
    solve = resolve(solver="dopri5", t_span=(1.0, 0.0))
    found = view("summary", solve, _trace([0, 0], [1.0, 0.5], [-0.5, -0.5], [True, True]))
    assert found is not None
    assert found.get("quantiles", {})["q90"][-1] == 0.5


def test_summary_of_no_steps() -> None:
    found = view("summary", ADAPTIVE, StepTrace.empty())
    assert found is not None
    assert len(found["t"]) == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 40, 700])
def test_quantiles_have_the_bits_of_numpy(steps: int) -> None:
    random = np.random.default_rng(steps)
    t, h = random.random(steps), random.choice([random.random(steps), np.full(steps, 0.1)])
    found = view("summary", ADAPTIVE, _trace([0] * steps, t.tolist(), h.tolist(), [True] * steps))
    assert found is not None
    for part in range(BINS):
        inside = h[(t >= part / BINS) & (t < (part + 1) / BINS)]
        expected = np.quantile(inside, list(QUANTILES.values())) if len(inside) else np.full(3, np.nan)
        got = [found.get("quantiles", {})[name][part] for name in QUANTILES]
        assert np.array_equal(got, expected, equal_nan=True)
