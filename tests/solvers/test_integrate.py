"""The offline driver: counts, spans, statuses, batch control and velocities that do not fit."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from solvers import SolverError, Status, integrate
from tests.processes import forked
from tests.solvers.support import (
    ADAPTIVE,
    FIFTH_ORDER,
    MULTISTEP,
    ONE_STEP,
    Watched,
    cases,
    decay,
    gaussian,
    ones,
    oscillator,
)

SETTINGS: list[dict[str, Any]] = [
    *({"solver": name, "steps": 7} for name in (*ONE_STEP, *MULTISTEP)),
    *({"solver": name, "steps": 7, "start": "rk"} for name in MULTISTEP),
    *({"solver": name, "rtol": 1e-6, "atol": 1e-6} for name in ADAPTIVE),
    *({"solver": name, "rtol": 1e-4, "atol": 1e-4, "error_control": "batch"} for name in ADAPTIVE),
    *({"solver": name, "first_step": 0.45, "controller": "pi"} for name in ADAPTIVE),
    {"save_at": [0.1, 0.5], "rtol": 1e-4},
]


SPANS = [(0.0, 1.0), (1.0, 0.0), (0.3, 0.8), (0.1, 0.7), (0.7, 0.1), (1 / 3, 0.9), (-2.0, -0.1)]


def steep(x: Tensor, t: Tensor) -> Tensor:
    """Rejects a few steps: the field turns on sharply at t = 0.5."""
    return -x * 40 * torch.sigmoid(200 * (t[:, None] - 0.5))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("velocity", [gaussian, steep])
def test_reported_nfe_is_what_was_asked_of_each_sample(settings: dict[str, Any], velocity: Any) -> None:
    count = 6
    x0 = torch.stack((torch.arange(count).double(), torch.linspace(-3, 3, count).double()), dim=1)
    watched = Watched(velocity, ids=True)
    solution = integrate(watched, x0, **settings)
    assert [watched.by_id[k] for k in range(count)] == solution.nfe.tolist()
    assert watched.rows == solution.nfe.sum()
    assert watched.calls == solution.nfe.max()
    assert set(solution.status) == {Status.SUCCESS}


@pytest.mark.parametrize("first_step", [None, 0.3])
@pytest.mark.parametrize(("solver", "stages"), [("bosh3", 4), ("dopri5", 7), ("tsit5", 7)])
def test_cost_of_an_adaptive_solve(solver: str, stages: int, first_step: float | None) -> None:
    solution = integrate(steep, ones(), solver=solver, first_step=first_step)
    attempts = len(solution.trace)
    assert not solution.trace.accepted.all()
    assert solution.nfe[0] == (1 if first_step else 2) + (stages - 1) * attempts
    if first_step:
        assert solution.trace.h[0] == first_step


@pytest.mark.parametrize("settings", [*SETTINGS[:12], *SETTINGS[15:18], SETTINGS[21]], ids=str)
def test_never_asked_outside_the_span(settings: dict[str, Any]) -> None:
    """Compared in the model's dtype; t ends at exactly the span's end."""
    for t_span, dtype in product(SPANS, (torch.float32, torch.float64)):
        watched = Watched(decay)
        solution = integrate(watched, ones(3, dtype=dtype), t_span=t_span, **settings)
        low, high = torch.tensor(sorted(t_span), dtype=dtype)
        times = torch.cat([t for _, t in watched.queries])
        assert times.dtype == dtype
        assert ((times >= low) & (times <= high)).all()
        assert solution.t.tolist() == [t_span[1]] * 3
        rate = math.exp(t_span[0] - t_span[1])
        tolerance = 0.3 if settings["solver"] == "euler" else 0.08
        assert solution.x.flatten().tolist() == pytest.approx([rate] * 3, rel=tolerance * max(1, rate))


@pytest.mark.parametrize("solver", FIFTH_ORDER)
def test_there_and_back(solver: str) -> None:
    x0 = torch.linspace(-2, 2, 9).double()[:, None]
    settings: dict[str, Any] = {"solver": solver, "rtol": 1e-9, "atol": 1e-9}
    end = integrate(gaussian, x0, **settings).x
    assert torch.allclose(end, 2 + 0.5 * x0, atol=1e-6)
    assert torch.allclose(integrate(gaussian, end, t_span=(1.0, 0.0), **settings).x, x0, atol=1e-6)
    half = integrate(gaussian, x0, t_span=(0.0, 0.4), **settings).x
    assert torch.allclose(integrate(gaussian, half, t_span=(0.4, 1.0), **settings).x, end, atol=1e-7)


@pytest.mark.parametrize("settings", [{}, {"first_step": 0.01}, {"error_control": "batch"}], ids=str)
def test_max_nfe_is_never_exceeded(settings: dict[str, Any]) -> None:
    for max_nfe in (*range(1, 25), 50, 51, 52):
        watched = Watched(steep)
        solution = integrate(watched, ones(2), rtol=1e-8, atol=1e-8, max_nfe=max_nfe, **settings)
        assert watched.calls == solution.nfe.max() <= max_nfe
        assert solution.status == (Status.MAX_NFE,) * 2
        assert max_nfe - solution.nfe.max() < 8  # a step that fits is started
        assert (solution.t < 1).all()
        assert torch.isfinite(solution.x).all()
        if solution.nfe[0] > 10:
            assert solution.t[0] == pytest.approx(
                solution.trace.h[solution.trace.accepted][: len(solution.trace)].sum() / 2
            )


def test_a_solve_that_just_fits_is_a_success() -> None:
    free = integrate(steep, ones()).nfe[0]
    assert integrate(steep, ones(), max_nfe=int(free)).status == (Status.SUCCESS,)
    assert integrate(steep, ones(), max_nfe=int(free) - 1).status == (Status.MAX_NFE,)


def test_step_underflow_before_a_singularity() -> None:
    """y' = y^2 from 1 has no solution beyond t = 1."""
    solution = integrate(lambda x, t: x**2, ones(), rtol=1e-6, atol=1e-6, t_span=(0.0, 2.0))
    assert solution.status[0] in (Status.STEP_UNDERFLOW, Status.NON_FINITE)
    assert solution.t[0] == pytest.approx(1.0, abs=1e-6)
    noise = torch.Generator().manual_seed(0)

    def jumpy_field(x: Tensor, t: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=noise, dtype=x.dtype) * 1e14

    jumpy = integrate(jumpy_field, ones(2), first_step=0.1)
    assert set(jumpy.status) == {Status.STEP_UNDERFLOW}
    assert (jumpy.nfe < 300).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_fields_end_at_once_or_after_six_tries(value: float) -> None:
    at_start = integrate(lambda x, t: torch.full_like(x, value), ones(2))
    assert at_start.status == (Status.NON_FINITE,) * 2
    assert at_start.nfe.tolist() == [1, 1]
    assert at_start.x.tolist() == [[1.0], [1.0]]
    later = integrate(lambda x, t: torch.where(t[:, None] > 0, value, x), ones(), first_step=0.1)
    assert later.status == (Status.NON_FINITE,)
    assert later.nfe[0] == 1 + 6 * 6
    assert later.trace.h == pytest.approx([0.1 * 0.2**k for k in range(6)])
    assert later.t[0] == 0.0
    fixed = integrate(lambda x, t: torch.full_like(x, value), ones(2), solver="rk4", steps=5)
    assert fixed.status == (Status.NON_FINITE,) * 2
    assert fixed.nfe.tolist() == [4, 4]
    assert fixed.x.tolist() == [[1.0], [1.0]]


def test_non_finite_starts() -> None:
    x0 = torch.tensor([[1.0], [math.nan], [math.inf], [2.0]])
    for settings in cases({}, {"solver": "heun2", "steps": 3}, {"error_control": "batch"}):
        status = integrate(decay, x0, **settings).status
        assert status == (Status.SUCCESS, Status.NON_FINITE, Status.NON_FINITE, Status.SUCCESS)


def test_overflow_is_not_a_success() -> None:
    solution = integrate(lambda x, t: x * 1e30, torch.ones(2, 1), solver="euler", steps=4)
    assert solution.status == (Status.NON_FINITE,) * 2
    assert torch.isfinite(solution.x).all()


def _batch(velocity: Any, x0: Tensor, **settings: Any) -> Any:
    return integrate(velocity, x0, error_control="batch", rtol=1e-6, atol=1e-6, **settings)


def test_batch_control_has_one_step_for_all() -> None:
    x0 = torch.linspace(-3, 3, 10).double()[:, None]
    solution = _batch(gaussian, x0)
    assert len(set(solution.nfe.tolist())) == 1
    per_sample = [solution.trace.h[solution.trace.sample == k] for k in range(10)]
    assert all(np.array_equal(a, b) for a, b in pairwise(per_sample))
    assert torch.allclose(solution.x, 2 + 0.5 * x0, atol=1e-5)
    assert np.array_equal(_batch(gaussian, x0[:1]).trace.h, integrate(gaussian, x0[:1], rtol=1e-6, atol=1e-6).trace.h)


def test_the_batch_norm_is_over_all_samples() -> None:
    x0 = torch.linspace(-3, 3, 4).double()[:, None]
    whole = integrate(lambda x, t: gaussian(x.reshape(-1, 1), t.repeat_interleave(4)).reshape(-1, 4), x0.reshape(1, 4),
                      rtol=1e-6, atol=1e-6)  # fmt: skip
    batch = _batch(gaussian, x0)
    assert batch.trace.error[batch.trace.sample == 0] == pytest.approx(whole.trace.error, rel=1e-9)
    assert torch.allclose(batch.x.flatten(), whole.x.flatten(), atol=1e-12)


@pytest.mark.parametrize("when", [0.0, 1e-12, 0.1, 0.5])
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_failing_lane_leaves_its_batch(bad: int, when: float) -> None:
    """The others end as if it had never been there, except for the attempt that it spoiled."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return torch.where(
            (x[:, :1] > 0) & (t[:, None] >= when), math.nan, torch.cat((0 * x[:, :1], gaussian(x[:, 1:], t)), 1)
        )

    x0 = torch.stack((torch.zeros(5), torch.linspace(-3, 3, 5)), dim=1).double()
    x0[bad, 0] = 1.0
    solution = _batch(velocity, x0)
    others = [k for k in range(5) if k != bad]
    assert [solution.status[k] for k in others] == [Status.SUCCESS] * 4
    assert solution.status[bad] == Status.NON_FINITE
    assert len({solution.nfe[k] for k in others}) == 1
    steps = [solution.trace.h[solution.trace.sample == k] for k in others]
    assert all(np.array_equal(a, b) for a, b in pairwise(steps))
    assert torch.allclose(solution.x[others, 1], 2 + 0.5 * x0[others, 1], atol=1e-5)
    if when == 0.0:
        assert torch.equal(solution.x[others], _batch(velocity, x0[others]).x)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_lane_that_fails_in_the_trial_step_leaves_its_batch_too(value: float) -> None:
    """Only the second call is bad: if the lane continued with its own step, the batch would no longer share steps."""
    watched = Watched(gaussian)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        v = watched(x, t)
        if watched.calls == 2:
            v[1] = value
        return v

    x0 = torch.linspace(-3, 3, 4).double()[:, None]
    solution = _batch(velocity, x0)
    assert solution.status == (Status.SUCCESS, Status.NON_FINITE, Status.SUCCESS, Status.SUCCESS)
    assert solution.nfe[1] == 2
    assert torch.equal(solution.x[[0, 2, 3]].isfinite(), torch.ones(3, 1, dtype=torch.bool))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x) * t[:, None]


def test_a_torch_module_without_gradients() -> None:
    solution = integrate(Net(), torch.ones(4, 3))
    assert not solution.x.requires_grad
    assert set(solution.status) == {Status.SUCCESS}


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2, 2), (1, 3, 8, 8)])
def test_any_event_shape(shape: tuple[int, ...]) -> None:
    for settings in cases({}, {"solver": "ab3", "steps": 60, "start": "rk"}):
        solution = integrate(lambda x, t: -x, torch.ones(shape), **settings)
        assert solution.x.shape == shape
        assert torch.allclose(solution.x, torch.full(shape, math.exp(-1)), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", ["euler-1000", "rk4-500", "ab4-1000", "dopri5@1e-4+max_step=0.001"])
def test_half_precision_does_not_stand_still(solver: str, dtype: torch.dtype) -> None:
    """A step of 1/1000 is less than the rounding of 1: states are summed in float32, the velocity asked in half."""
    watched = Watched(lambda x, t: torch.ones_like(x))
    solution = integrate(watched, ones(2, dtype=dtype), solver=solver, save_at=[0.0, 0.5, 1.0])
    assert set(solution.status) == {Status.SUCCESS}
    assert solution.x.flatten().tolist() == [2.0] * 2
    assert solution.saved is not None
    assert solution.saved[0].flatten().tolist() == [1.0, 1.5, 2.0]
    assert solution.x.dtype == solution.saved.dtype == dtype
    assert all(x.dtype == t.dtype == dtype for x, t in watched.queries)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_follows_the_velocity_of_its_own_dtype(dtype: torch.dtype) -> None:
    """The Euler steps of float32 states with velocities in half precision, bit for bit."""
    x = torch.linspace(-1, 1, 6).to(dtype).reshape(3, 2)
    found = integrate(decay, x, solver="euler", steps=64)
    state = x.float()
    for _ in range(64):
        state = state + decay(state.to(dtype), torch.zeros(3)).float() / 64
    assert torch.equal(found.x, state.to(dtype))
    with pytest.raises(SolverError, match=rf"must return a tensor like x, \(3, 2\) {dtype}.*torch.float32"):
        integrate(lambda x, t: x.float(), x, solver="euler", steps=2)


def test_inputs_are_left_alone() -> None:
    x0 = ones(3)

    def careless(x: Tensor, t: Tensor) -> Tensor:
        v = -x.clone()
        x.fill_(math.nan)
        t.fill_(math.nan)
        return v

    for settings in cases({}, {"solver": "euler", "steps": 5}, {"solver": "rk4", "steps": 5}):
        assert torch.equal(integrate(careless, x0, **settings).x, integrate(decay, x0, **settings).x)
    assert torch.equal(x0, ones(3))
    aliased = integrate(lambda x, t: x, x0, solver="rk4", steps=5)
    assert aliased.x[0].item() == pytest.approx(math.e, abs=1e-4)
    strided = torch.ones(3, 4).double()[:, ::2]
    assert torch.equal(integrate(decay, strided).x[:, :1], integrate(decay, ones(3)).x)


@pytest.mark.parametrize(
    ("velocity", "words"),
    [
        (lambda x, t: x[:, :1], r"must return a tensor like x, \(2, 3\) torch.float64 on cpu, but returned \(2, 1\)"),
        (lambda x, t: x.float(), r"but returned \(2, 3\) torch.float32 on cpu"),
        (lambda x, t: x.sum(), r"but returned \(\) torch.float64"),
        (lambda x, t: x.tolist(), "but returned list"),
        (lambda x, t: None, "but returned NoneType"),
    ],
)
def test_velocities_that_do_not_fit(velocity: Any, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        integrate(velocity, ones(2, 3))
    assert caught.value.field == "velocity"


def test_errors_of_the_velocity_pass_through() -> None:
    def broken(x: Tensor, t: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        integrate(broken, ones())


@pytest.mark.parametrize("x0", [[1.0], torch.ones(3, 1, dtype=torch.int64), torch.tensor(1.0), None])
def test_starts_that_do_not_fit(x0: Any) -> None:
    with pytest.raises(SolverError, match=r"floating-point tensor of shape \(samples, \*event\)") as caught:
        integrate(decay, x0)
    assert caught.value.field == "x0"


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    integrate(decay, ones(), progress=True)
    assert "1.000 of the span" in capsys.readouterr().err
    integrate(decay, ones())
    assert capsys.readouterr().err == ""


def test_the_oscillator_over_many_turns() -> None:
    solution = integrate(
        oscillator, torch.tensor([[1.0, 0.0]]).double(), t_span=(0.0, 12 * math.pi), rtol=1e-9, atol=1e-9
    )
    assert solution.x[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-5)
    assert solution.t[0] == 12 * math.pi
    assert len(solution.trace) > 64


_AFTER_WARM_UP = """
import torch
from numba.core.dispatcher import Dispatcher
from solvers import clocks, control, integrate, kernels_cpu, trace, warm_up

def compiled():
    modules = (clocks, control, kernels_cpu, trace)
    found = {each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
    return {each.py_func.__name__: len(each.signatures) for each in found}

warm_up(torch.float32)
before, x0 = compiled(), torch.randn(5, 3)
for options in ({}, {"error_control": "batch"}, {"solver": "rk4", "steps": 3}, {"solver": "bosh3", "rtol": 1e-6},
              {"solver": "ab4", "steps": 9}, {"first_step": 0.5}, {"save_at": [0.5]}):
    integrate(lambda x, t: torch.sin(9 * x), x0, **options)
assert compiled() == before, (before, compiled())
"""


def test_nothing_is_compiled_after_the_warm_up() -> None:
    assert forked(_AFTER_WARM_UP) == (0, "")


def test_velocities_however_they_lie_in_memory() -> None:
    """Strided, expanded, lazily negated, or with a gradient: only their numbers matter."""
    x0 = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)

    def strided(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x, x), dim=-1)[..., 0]

    def negated(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        v = torch.complex(torch.zeros_like(x), x).conj().imag
        assert v.is_neg()
        return v

    def trained(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return -x * torch.ones(1, dtype=x.dtype, requires_grad=True)

    for settings in cases({"solver": "rk4", "steps": 7}, {"rtol": 1e-6}):
        expected = integrate(lambda x, t: -x, x0, **settings).x
        for velocity in (strided, negated, trained):
            assert torch.equal(integrate(velocity, x0, **settings).x, expected)
        ones = integrate(lambda x, t: torch.ones(1, 1, dtype=x.dtype).expand(x.shape), x0, **settings).x
        assert torch.allclose(ones, x0 + 1)
        turned = integrate(lambda x, t: -x, x0.T.contiguous().T, **settings).x
        assert turned.is_contiguous()
        assert torch.equal(turned, expected)
