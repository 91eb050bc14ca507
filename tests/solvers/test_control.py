"""Controllers and the first step against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import integrate
from solvers.control import CONTROLLERS, factor, first_guess, first_step
from tests.solvers.support import decay, ones


def _factor(error: float, name: str = "i", q: int = 4, before: float = 1.0, after_rejection: bool = False) -> float:
    controller = CONTROLLERS[name](q)
    return factor(error, controller.alpha, controller.beta, before, after_rejection)


@pytest.mark.parametrize(
    ("name", "q", "exponent"), [("paper", 4, 1 / 6), ("paper", 2, 1 / 4), ("i", 4, 1 / 5), ("i", 2, 1 / 3)]
)
def test_formula(name: str, q: int, exponent: float) -> None:
    assert _factor(0.5, name, q) == pytest.approx(0.9 * 0.5**-exponent)
    assert _factor(20.0, name, q) == pytest.approx(max(0.2, 0.9 * 20.0**-exponent))


def test_pi_remembers_the_error_before() -> None:
    assert _factor(0.5, "pi", 4, before=0.25) == pytest.approx(0.9 * 0.5 ** -(0.2 - 0.75 * 0.04) * 0.25**0.04)
    assert _factor(3.0, "pi", 4, before=0.25) == pytest.approx(0.9 * 3.0 ** -(0.2 - 0.75 * 0.04))


@given(
    st.floats(0, np.inf), st.sampled_from(sorted(CONTROLLERS)), st.integers(1, 4), st.floats(1e-12, 1), st.booleans()
)
def test_factors_are_clipped(error: float, name: str, q: int, before: float, after_rejection: bool) -> None:
    found = _factor(error, name, q, before, after_rejection)
    assert 0.2 <= found <= 10
    if after_rejection or error > 1:
        assert found <= 1


def test_extremes() -> None:
    assert _factor(0.0) == 10.0
    assert _factor(0.0, after_rejection=True) == 1.0
    assert _factor(np.inf) == pytest.approx(0.2)


def test_first_step_formula() -> None:
    assert first_guess(2.0, 4.0, 1.0) == pytest.approx(0.005)
    assert first_guess(0.0, 4.0, 1.0) == 1e-6
    assert first_guess(2.0, 0.0, 1.0) == 1e-6
    assert first_guess(100.0, 1.0, 0.5) == 0.5
    assert first_step(0.005, 4.0, 9.0, 4.0, 1.0) == pytest.approx((0.01 / 9) ** 0.2)
    assert first_step(1e-6, 4.0, 9.0, 4.0, 1.0) == pytest.approx(1e-4)
    assert first_step(0.5, 0.0, 0.0, 4.0, 1.0) == pytest.approx(5e-4)
    assert first_step(0.9, 1e-9, 0.0, 4.0, 0.3) == 0.3


def test_the_default_controller_of_dopri5_is_the_papers() -> None:
    default, paper, classical = (
        integrate(decay, ones(), rtol=1e-8, atol=1e-10, controller=name) for name in (None, "paper", "i")
    )
    assert default.settings["controller"] == "paper"
    assert default.nfe[0] == paper.nfe[0] > classical.nfe[0]
    assert integrate(decay, ones(), solver="tsit5").settings["controller"] == "i"


@pytest.mark.parametrize("controller", ["paper", "i", "pi"])
def test_the_trace_obeys_the_controller(controller: str) -> None:
    trace = integrate(lambda x, t: -20 * x, ones(), rtol=1e-6, atol=1e-6, controller=controller).trace
    control = CONTROLLERS[controller](4)
    before, rejected = 1.0, False
    for k in range(len(trace) - 2):
        change = _factor(trace.error[k], controller, 4, before, rejected)
        if trace.t[k + 1] + 1.02 * trace.h[k] * change < 1:
            assert trace.h[k + 1] == pytest.approx(trace.h[k] * change, rel=1e-12)
        rejected = not trace.accepted[k]
        before = before if rejected else float(trace.error[k])
    assert len(trace) > 4
    assert control.alpha > 0
