"""Stochastic samplers: steps as in the papers, bits, marginals, weak orders, log-densities, refusals."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import SolverError, SolverSpec, integrate, log_density, resolve
from solvers.draws import normals
from solvers.lanes import Admission, Lanes
from solvers.stochastic import EDGE, SCHEDULES, Diffusion, transition_log_prob, weights
from tests.solvers.support import cases, gaussian, run, same_bits, slope

ODE = {"sde": "euler", "sde_heun": "heun2"}
GRID = [0.0, 0.03, 0.2, 0.5, 0.6, 0.97, 1.0]


def noise(rows: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(5), dtype=dtype)


def z_of(seed: int, index: int, steps: int, width: int) -> Tensor:
    z = np.empty((steps, width))
    normals(seed, index, z)
    return torch.from_numpy(z)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("solver", ODE)
def test_steps_are_those_of_the_formula(solver: str, schedule: str) -> None:
    """A plain loop with drift v + w/2 s, the score from the velocity; the last time needs its limit."""
    diffusion = Diffusion(1.3, schedule, 0.8)
    x, width = noise(3, 2), 2
    found = integrate(
        gaussian, x, solver=solver, grid=GRID, diffusion=asdict(diffusion), seed=11, save_at=GRID[1:]
    ).saved
    assert found is not None

    def w(t: float) -> float:
        raw = {"linear": 1 - t, "flow_grpo": (1 - t) / max(t, 0.05), "constant": min(1.0, (1 - t) / 0.05)}
        return 1.3**2 * raw[schedule]

    def drift(x: Tensor, t: float) -> Tensor:
        t = min(t, 1 - 1e-9)
        v = gaussian(x, torch.full((len(x),), t, dtype=torch.float64))
        return v + w(t) / 2 * (t * v - x) / (1 - t)

    z = torch.stack([z_of(11, index, len(GRID) - 1, width) for index in range(3)], dim=1)
    for n, (t, after) in enumerate(pairwise(GRID)):
        h = after - t
        if solver == "sde":
            x = x + h * drift(x, t) + 0.8 * math.sqrt(h * w(t)) * z[n]
        else:
            g = 0.8 * math.sqrt(h * (w(t) + w(after)) / 2) * z[n]
            trial = x + h * drift(x, t) + g
            x = x + h / 2 * (drift(x, t) + drift(trial, after)) + g
        torch.testing.assert_close(found[:, n], x, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_0_has_the_bits_of_the_ode_solver(dtype: torch.dtype) -> None:
    x0 = noise(7, 3, dtype)
    for solver, ode in ODE.items():
        for options in cases({"steps": 9}, {"grid": GRID}, {"steps": 5, "grid": "shift(3)"}, {"grid": [0.3, 0.7, 1]}):
            span = (0.3, 1.0) if options.get("grid") == [0.3, 0.7, 1] else (0.0, 1.0)
            for schedule in SCHEDULES:
                quiet = {"scale": 0, "schedule": schedule}
                found = integrate(gaussian, x0, solver=solver, diffusion=quiet, t_span=span, **options)
                expected = integrate(gaussian, x0, solver=ode, t_span=span, **options)
                assert same_bits(found.x, expected.x)
                assert found.nfe.tolist() == expected.nfe.tolist()


def _admissions(x: Tensor, order: Any = None) -> list[Admission]:
    """Stochastic and other lanes side by side."""
    texts = ("sde-7+flow_grpo(1.5,0.5)", "rk4-3", "sde_heun-4+constant", "dopri5@1e-3", "sde-7+linear(0)", "ab3-5")
    plans = [resolve(solver=text) for text in texts]
    return [
        Admission(plan, x[3 * owner : 3 * owner + 3], owner, 0, seed=9, first_sample=100 + owner)
        for owner, plan in enumerate(plans)
    ]


@pytest.mark.parametrize("order", [None, np.array([2, 0, 1, 4, 3])], ids=["in-order", "permuted"])
def test_both_kernels_give_the_same_bits_in_any_company(order: Any) -> None:
    x = noise(18, 5, torch.float32)
    ends = []
    for compiled in (True, False):
        lanes = Lanes((5,), torch.float32, compiled=compiled, order=order)
        ends.append(run(lanes, gaussian, _admissions(x)))
    for key, end in ends[0].items():
        assert same_bits(end.x, ends[1][key].x)
    for one in _admissions(x):
        lone = Admission(one.plan, one.x0[1:2], one.owner, 0, seed=9, first_sample=one.first_sample + 1)
        alone = run(Lanes((5,), torch.float32, order=order), gaussian, [lone])
        assert same_bits(alone[one.owner, 0].x, ends[0][one.owner, 1].x)


def test_noise_depends_on_seed_and_index_and_step() -> None:
    x0 = torch.zeros(4, 2)
    ends = [integrate(gaussian, x0, solver="sde-3", seed=seed).x for seed in (0, 1, 0)]
    assert same_bits(ends[0], ends[2])
    assert len({tuple(row) for end in ends[:2] for row in end.tolist()}) == 8


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_marginals_are_those_of_the_ode(schedule: str, scale: float) -> None:
    """Mean and deviation of 20,000 numbers on the way from N(0, 1) to N(2, 1/4), within four standard errors."""
    at = [0.25, 0.5, 0.75, 1.0]
    saved = integrate(
        gaussian, noise(5_000, 4), solver="sde_heun-60", diffusion={"scale": scale, "schedule": schedule}, save_at=at
    ).saved
    assert saved is not None
    for n, t in enumerate(at):
        std, values = math.sqrt((1 - t) ** 2 + t**2 / 4), saved[:, n].flatten()
        assert abs(values.mean() - 2 * t) < 4 * std / math.sqrt(20_000)
        assert abs(values.std() / std - 1) < 4 / math.sqrt(40_000) + 0.005


def _variance_error(stages: int, steps: int, schedule: str) -> float:
    """Error of the variance at t = 1 for the linear field `gaussian`, which the weights propagate without sampling."""
    times = np.linspace(0, 1, steps + 1)
    h = np.diff(times)
    rate = (times / 4 - (1 - times)) / ((1 - times) ** 2 + times**2 / 4)  # dv/dx
    (a, b, mix), variance = weights(times, stages, Diffusion(1.0, schedule)), 1.0
    for n in range(steps):
        last = mix[stages * (n + 1) - 1]
        of_x, of_z = 1 + last[2] + h[n] * b[stages * (n + 1) - 1, 0] * rate[n], last[3]
        if stages == 2:
            trial = 1 + last[0] + h[n] * a[2 * n + 1, 0] * rate[n]
            pull = h[n] * b[2 * n + 1, 1] * rate[n + 1]
            of_x, of_z = of_x + pull * trial, of_z + pull * last[1]
        variance = of_x**2 * variance + of_z**2
    return abs(variance - 0.25)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weak_orders(schedule: str) -> None:
    """1 and 2, in the variance at the end, on grids that have the bounds of the schedules among their points."""
    steps = [160, 320, 640]
    for stages, order in ((1, 1), (2, 2)):
        observed = slope(steps, [_variance_error(stages, n, schedule) for n in steps])
        assert abs(observed - order) < 0.25


def test_temperature_multiplies_the_noise_alone() -> None:
    times = np.array(GRID)
    for stages, columns in ((1, [3]), (2, [1, 3])):
        warm, cold = (weights(times, stages, Diffusion(1.2, "flow_grpo", temperature)) for temperature in (1.0, 0.25))
        assert np.array_equal(warm[0], cold[0])
        assert np.array_equal(warm[1], cold[1])
        assert np.allclose(cold[2][:, columns], 0.25 * warm[2][:, columns], rtol=1e-15)
        others = [column for column in range(4) if column not in columns]
        assert np.array_equal(warm[2][:, others], cold[2][:, others])


def test_log_densities_of_transitions() -> None:
    """Those of the normal distributions that lead from each saved state to the next."""
    x0, diffusion = noise(4, 3), Diffusion(1.5, "constant", 0.7)
    plan = resolve(solver="sde", grid=GRID, diffusion=diffusion, dtype=torch.float64)
    saved = integrate(gaussian, x0, solver="sde", grid=GRID, diffusion=diffusion, seed=3, save_at=GRID).saved
    assert saved is not None
    assert plan.times is not None
    found = transition_log_prob(plan.times, diffusion, 3, 0, np.array([1.0, 1.0, 0.5, 0.0]), 3)
    for n, t in enumerate(GRID[:-1]):
        h, r = GRID[n + 1] - t, 1.5**2 / max(1 - t, EDGE)
        v = gaussian(saved[:, n], torch.full((4,), t, dtype=torch.float64))
        mean = saved[:, n] + h * ((1 + r * t / 2) * v - r / 2 * saved[:, n])
        density = torch.distributions.Normal(mean, 0.7 * math.sqrt(h * r * (1 - t)))
        exact = density.log_prob(saved[:, n + 1]).sum(dim=1).numpy()
        np.testing.assert_allclose(found[:2, n], exact[:2], rtol=1e-9)
        assert np.isnan(found[2, n]) == (n >= 3)
        assert np.isnan(found[3, n])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"solver": "sde"}, "needs steps, for example sde-20"),
        ({"solver": "sde@1e-5"}, "has no error estimate"),
        ({"solver": "euler-5+linear"}, "euler has no noise"),
        ({"solver": "sde-5+linear(101)"}, "scale must be from 0 to 100, got 101"),
        ({"solver": "sde-5+ramp"}, "start is for Adams-Bashforth methods"),
        ({"solver": "sde-5", "rtol": 1e-3}, "has no error estimate"),
        ({"solver": "sde-5", "error_control": "batch"}, "error_control is for error control"),
        (
            {"solver": "sde-5", "t_span": (1.0, 0.0)},
            "goes from noise to data only, between t = 0 and 1, not from 1 to 0",
        ),
        ({"solver": "sde_heun-5", "t_span": (0.0, 2.0)}, "not from 0 to 2"),
        ({"solver": "euler-5", "diffusion": {}}, "diffusion is for sde and sde_heun; euler has no noise"),
        ({"solver": "sde-5", "diffusion": {"schedule": "cosine"}}, "'cosine'; use one of linear, flow_grpo, constant"),
        ({"solver": "sde-5", "diffusion": {"scale": -1}}, "scale must be from 0 to 100, got -1"),
        ({"solver": "sde-5", "diffusion": {"scale": math.nan}}, "scale must be from 0 to 100, got nan"),
        ({"solver": "sde-5", "diffusion": {"temperature": True}}, "temperature must be from 0 to 100, got True"),
        ({"solver": "sde-5", "diffusion": {"noise": 1}}, "an object with scale, schedule, temperature, got"),
        ({"solver": "sde-5", "diffusion": 3}, "an object with scale, schedule, temperature, got 3"),
        ({"solver": "sde-5", "diffusion": "linear(2"}, r"linear, linear\(SCALE\) or linear\(SCALE,TEMPERATURE\)"),
        (
            {"solver": "sde-5+linear(2)", "diffusion": {"scale": 3}},
            r"diffusion = linear\(2\), but diffusion = linear\(3\)",
        ),
    ],
)
def test_refusals_say_why(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SolverError, match=words):
        SolverSpec.of(**settings)


def test_equal_settings_in_any_form_are_equal() -> None:
    forms: list[Any] = ["flow_grpo(0.7)", {"scale": 0.7, "schedule": "flow_grpo"}, Diffusion(0.7, "flow_grpo")]
    specs = {SolverSpec.of("sde-5", diffusion=form) for form in forms}
    [spec] = specs | {SolverSpec.parse("sde-5+flow_grpo(0.7)")}
    assert spec.settings["diffusion"] == {"scale": 0.7, "schedule": "flow_grpo", "temperature": 1.0}
    assert SolverSpec.of("sde-5+flow_grpo(0.7)", diffusion=forms[1]) == spec


def test_log_density_follows_the_ode_only() -> None:
    with pytest.raises(SolverError, match="not from 1 to 0"):
        log_density(gaussian, noise(2, 2), solver="sde-5")
