"""Known values: replacement as written out plainly and with any solver, resampling, guidance, bits, refusals."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import SolverError, SolverSpec, catalogue, integrate, resolve
from solvers.draws import normals
from solvers.known_values import KnownValues, guided
from solvers.lanes import Admission, Lanes
from solvers.trace import steps_of
from tests.solvers.support import run, same_bits

NAN = math.nan
KNOWN = torch.tensor([[0.5, NAN, -2.0, NAN, NAN]], dtype=torch.float64)
FREE = KNOWN.isnan()[0]
TEXTS = (
    "euler-7",
    "rk4-3",
    "dopri5@1e-4",
    "ab3-6",
    "sde-8",
    "sde_heun-3",
    "unipc3-6",
    "bosh3@1e-3",
    "euler-6+resample=3",
)


def field(x: Tensor, t: Tensor) -> Tensor:
    """Every number depends on all others, and on t."""
    return torch.sin(x.roll(1, dims=1) + t[:, None]) - 0.3 * x * x.roll(2, dims=1)


def noise(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(3), dtype=dtype)


def z_of(seed: int, samples: int, steps: int) -> Tensor:
    z = np.empty((samples, steps, 5))
    for index in range(samples):
        normals(seed, index, z[index])
    return torch.from_numpy(z).transpose(0, 1)


def line(x0: Tensor, t: float) -> Tensor:
    return (1 - t) * x0 + t * KNOWN


def pinned(x0: Tensor, x: Tensor, t: float) -> Tensor:
    return torch.where(FREE, x, line(x0, t))


def slope(x0: Tensor, x: Tensor, t: float) -> Tensor:
    """The velocity of a state, with that of known numbers in its place."""
    v = field(pinned(x0, x, t), torch.full((len(x),), t, dtype=x.dtype))
    return torch.where(FREE, v, KNOWN - x0)


def by_hand(solver: str, x: Tensor) -> Tensor:
    """Six equal steps of a solver, as the papers write them."""
    x0, h, before = x, 1 / 6, []
    z = z_of(9, len(x), 6)
    for n in range(6):
        t = n * h
        k = slope(x0, x, t)
        before = [k, *before[:2]]
        if solver == "euler":
            x = x + h * k
        elif solver == "rk4":
            k2 = slope(x0, x + h / 2 * k, t + h / 2)
            k3 = slope(x0, x + h / 2 * k2, t + h / 2)
            x = x + h / 6 * (k + 2 * k2 + 2 * k3 + slope(x0, x + h * k3, t + h))
        elif solver == "ab3":
            factors = {1: (1.0,), 2: (3 / 2, -1 / 2), 3: (23 / 12, -16 / 12, 5 / 12)}[len(before)]
            x = x + h * sum(factor * each for factor, each in zip(factors, before, strict=True))
        else:
            x = x + h * (k + (t * k - x) / 2) + math.sqrt(h * (1 - t)) * z[n]
        x = pinned(x0, x, t + h)
    return x


@pytest.mark.parametrize("solver", ["euler", "rk4", "ab3", "sde"])
def test_replacement_is_the_plain_loop(solver: str) -> None:
    x0 = noise(4)
    solution = integrate(field, x0, solver=solver, steps=6, known=KNOWN, seed=9)
    torch.testing.assert_close(solution.x, by_hand(solver, x0), rtol=0, atol=1e-12)
    assert torch.equal(solution.x[:, ~FREE], KNOWN[:, ~FREE].expand(4, -1))


@pytest.mark.parametrize("solver", [name for name, entry in catalogue.solvers().items() if not entry.learned])
def test_any_solver_follows_the_field_whose_known_numbers_go_along_the_line(solver: str) -> None:
    """With as many calls and the same steps, and a span that starts later."""
    entry = catalogue.find(solver)
    cases: list[dict[str, Any]] = [{"steps": 5}, {"steps": 4, "t_span": (0.25, 1.0)}]
    cases += [{"rtol": 1e-5, "save_at": [0.3, 1.0]}] if entry.adaptive else []
    for options in cases:
        start = options.get("t_span", (0.0,))[0]
        x = noise(3)
        x0 = torch.where(FREE, x, (x - start * KNOWN) / (1 - start))

        def along(state: Tensor, t: Tensor, x0: Tensor) -> Tensor:
            at = t[:, None]
            return torch.where(FREE, field(torch.where(FREE, state, (1 - at) * x0 + at * KNOWN), t), KNOWN - x0)

        if entry.stochastic:
            options["diffusion"] = {"scale": 0.0}
        plain = [
            integrate(lambda s, t, own=own: along(s, t, own), one, solver=solver, **options)
            for own, one in zip(x0.split(1), x.split(1), strict=True)
        ]
        solution = integrate(field, x, solver=solver, known=KNOWN, **options)
        torch.testing.assert_close(solution.x, torch.cat([each.x for each in plain]), rtol=0, atol=1e-9)
        assert solution.nfe.tolist() == [int(each.nfe[0]) for each in plain]
        assert torch.equal(solution.x[:, ~FREE], KNOWN[:, ~FREE].expand(3, -1))
        if solution.saved is not None:
            torch.testing.assert_close(solution.saved[:, 0, ~FREE], line(x0, 0.3)[:, ~FREE], rtol=0, atol=1e-12)
            assert torch.equal(solution.saved[:, 1], solution.x)


def test_resampling_is_the_plain_loop() -> None:
    """A step from t > 0 is made three times, and noise brings the state back before each repetition."""
    times, x0 = [0.0, 0.2, 0.5, 1.0], noise(4)
    solution = integrate(field, x0, solver="euler", grid=times, resample=3, known=KNOWN, seed=9)
    x, z, n = x0, z_of(9, 4, 7), 0
    for t, after in pairwise(times):
        repeats = 3 if t else 1
        for k in range(repeats):
            ended = pinned(x0, x + (after - t) * slope(x0, x, t), after)
            gamma = math.sqrt((1 - t) ** 2 - (t / after) ** 2 * (1 - after) ** 2)
            x = ended if k == repeats - 1 else t / after * ended + gamma * z[n]
            n += 1
    torch.testing.assert_close(solution.x, x, rtol=0, atol=1e-12)
    assert solution.nfe.tolist() == [7] * 4
    assert solution.trace.t[:7].tolist() == [0.0, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5]
    np.testing.assert_allclose(solution.trace.h[:7], [0.2, 0.3, 0.3, 0.3, 0.5, 0.5, 0.5])


def test_resampling_keeps_the_marginals_of_the_path() -> None:
    """From N(0, 1) to N(2, 1/4), nothing known: mean and deviation of 20,000 numbers, within four standard errors."""

    def exact(x: Tensor, t: Tensor) -> Tensor:
        t = t[:, None]
        variance = (1 - t) ** 2 + t**2 / 4
        return 2 + (t / 4 - (1 - t)) / variance * (x - 2 * t)

    x0 = torch.randn(5_000, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x = integrate(exact, x0, solver="rk4", steps=12, resample=3).x
    assert abs(float(x.mean()) - 2) < 4 * 0.5 / math.sqrt(20_000)
    assert abs(float(x.std()) - 0.5) < 4 * 0.5 / math.sqrt(40_000)


def test_the_steps_of_a_grid_are_told_from_their_ends() -> None:
    starts, lengths = steps_of(np.array([1.0, 0.5, 0.0]))
    assert starts.tolist() == [1.0, 0.5]
    assert lengths.tolist() == [-0.5, -0.5]


def _admissions(x: Tensor) -> list[Admission]:
    """Three samples by each solver with known values, and three without."""
    known, admissions = KNOWN.to(x.dtype), list[Admission]()
    rows = torch.cat((known, known + 1, torch.where(FREE, 0.25, NAN)[None].to(x.dtype)))
    for owner, text in enumerate(TEXTS * 2):
        values = None if owner < len(TEXTS) else known if owner % 2 else rows
        start = x[3 * owner : 3 * owner + 3]
        admissions.append(Admission(resolve(solver=text), start, owner, 0, None, 9, owner, values))
    return admissions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_kernels_or_company(dtype: torch.dtype) -> None:
    x = noise(6 * len(TEXTS), dtype)
    ends = []
    for compiled in (True, False):
        lanes = Lanes((5,), dtype, compiled=compiled)
        ends.append(run(lanes, field, _admissions(x)))
        assert len(lanes.states.pins) == 0
    for key, end in ends[0].items():
        assert same_bits(end.x, ends[1][key].x)
    for one in _admissions(x):
        values = one.known
        lone = values if values is None or len(values) == 1 else values[1:2]
        alone = Admission(one.plan, one.x0[1:2], one.owner, 0, None, 9, one.first_sample + 1, lone)
        end = run(Lanes((5,), dtype), field, [alone])[one.owner, 0]
        assert same_bits(end.x, ends[0][one.owner, 1].x)
        if lone is not None:
            where = ~lone[0].isnan()
            assert same_bits(end.x.reshape(-1)[where], lone[0][where])


def test_a_velocity_that_is_not_finite_where_all_is_known_does_no_harm() -> None:
    def broken(x: Tensor, t: Tensor) -> Tensor:
        v = field(x, t)
        v[:, ~FREE] = NAN
        return v

    for solver in ("rk4-4", "dopri5"):
        solution = integrate(broken, noise(2), solver=solver, known=KNOWN)
        assert set(solution.status) == {"success"}


def test_guidance_is_the_formula_by_autograd() -> None:
    x, t = noise(3), torch.tensor([0.0, 0.4, 0.9], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0, 0.5, 0.0, 0.25]], dtype=torch.float64)
    y = torch.where(weights > 0, torch.arange(5.0, dtype=torch.float64), NAN)
    known = KnownValues(y, weights, 4.0)
    constants = known.constants().expand(3, -1)
    with torch.enable_grad():
        at = x.clone().requires_grad_()
        v = field(at, t)
        end = at + (1 - t)[:, None] * v
        distance = (weights * (y.nan_to_num() - end) ** 2).sum() / 2
        [gradient] = torch.autograd.grad(distance, at, retain_graph=True)
        corrected = guided(x, t, v.detach(), constants, lambda e: torch.autograd.grad(v, at, e)[0])
    factor = torch.tensor([4.0, min(4.0, 0.6 / (0.4 * (0.36 / (0.16 + 0.36)))), 4.0], dtype=torch.float64)
    expected = v.detach() - factor[:, None] * gradient
    torch.testing.assert_close(corrected, expected, rtol=0, atol=1e-12)


def test_guidance_without_a_bound_is_exact_for_standard_normal_data() -> None:
    """There v' = (y - x) / (1 - t), the velocity of the path to y."""
    x, t = noise(4), torch.tensor([0.1, 0.4, 0.7, 0.95], dtype=torch.float64)
    rate = ((2 * t - 1) / (t**2 + (1 - t) ** 2))[:, None]  # v = rate x
    constants = KnownValues(torch.full((1, 5), 2.0).double(), torch.ones(1, 5).double(), math.inf).constants()
    constants = constants.expand(4, -1)
    v = guided(x, t, rate * x, constants, lambda e: e * rate)
    torch.testing.assert_close(v, (2.0 - x) / (1 - t)[:, None], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "field_name", "words"),
    [
        ({"solver": "ab3-5", "resample": 2}, "resample", "not those of ab3"),
        ({"solver": "sde-5", "resample": 2}, "resample", "not those of sde"),
        ({"solver": "dopri5", "resample": 2}, "resample", "under error control"),
        ({"solver": "euler-5", "resample": 101}, "resample", "at most 100"),
        ({"solver": "euler-5", "resample": 0}, "resample", "at least 1"),
        ({"solver": "euler-5", "resample": 2, "t_span": (1, 0)}, "resample", "not from 1 to 0"),
        ({"solver": "euler-5000000", "resample": 3, "max_nfe": 10**9}, "resample", "10000000 steps"),
    ],
)
def test_refused_settings(options: dict[str, Any], field_name: str, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        SolverSpec.of(options.pop("solver"), **options)
    assert caught.value.field == field_name


def test_resample_is_part_of_the_text() -> None:
    spec = SolverSpec.parse("rk4-5+resample=3")
    assert (spec.resample, str(spec), spec.settings["resample"]) == (3, "rk4-5+resample=3", 3)
    assert "resample" not in SolverSpec.parse("rk4-5").settings
    assert resolve(solver="rk4-5+resample=3").nfe == 4 * (1 + 4 * 3)


def test_refused_values() -> None:
    x0 = noise(2)
    for known, t_span, words in (
        (KNOWN[:, :4], (0.0, 1.0), "must be"),
        (KNOWN.expand(3, -1), (0.0, 1.0), "must be"),
        (KNOWN * math.inf, (0.0, 1.0), "infinite"),
        (KNOWN, (1.0, 0.0), "from 1 to 0"),
    ):
        with pytest.raises(SolverError, match=words):
            integrate(field, x0, solver="euler", steps=3, known=known, t_span=t_span)
