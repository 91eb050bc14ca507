"""The catalogue of solvers, the orders that it states, and methods added to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from solvers import SolverError, Status, catalogue, integrate, resolve
from solvers.grids import times
from solvers.lanes import Admission, Lanes
from solvers.spec import parameters
from solvers.tableaus import Tableau
from tests.solvers.support import Watched, decay, fall, fall_exact, gaussian, ones, run, slope

ENTRIES = list(catalogue.solvers().values())


def test_the_standard_names() -> None:
    kinds = {"fixed": "euler midpoint heun2 ralston2 rk4 rk4_38", "adaptive": "bosh3 dopri5 tsit5"}
    kinds |= {"multistep": "ab2 ab3 ab4 dpmpp_2m unipc2 unipc3", "stochastic": "sde sde_heun"}
    for kind, names in kinds.items():
        assert [catalogue.find(name).kind for name in names.split()] == [kind] * len(names.split())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entries_describe_themselves(entry: catalogue.Solver) -> None:
    shown = json.loads(json.dumps(entry.describe()))
    assert shown["name"] == entry.name
    assert shown["order"] == entry.order
    assert shown["reference"]
    unlimited = entry.exponential or entry.stochastic
    assert (shown["stability_limit"] is None) if unlimited else (shown["stability_limit"] > 0)
    assert (shown["embedded_order"] is not None) == entry.adaptive
    assert set(parameters(entry)) >= {"steps", "grid", "max_nfe"}


@pytest.mark.parametrize(
    ("name", "limit"),
    [("euler", 2), ("heun2", 2), ("bosh3", 2.5127), ("rk4_38", 2.7853), ("dopri5", 3.3066), ("tsit5", 3.5068)],
)
def test_stability_limits(name: str, limit: float) -> None:
    """As published; and steps on either side of the limit shrink or grow."""
    found = catalogue.find(name).stability_limit
    assert found == pytest.approx(limit, abs=2e-4)
    assert found is not None

    def size(z: float) -> float:
        return abs(integrate(lambda x, t: -z * x, ones(), solver=name, steps=1).x.item())

    assert size(found * 0.999) < 1 < size(found * 1.001)


@pytest.mark.parametrize("width", [1, 100, 1000])
@pytest.mark.parametrize("grid", ["uniform", {"name": "shift", "value": 3.0}], ids=str)
def test_observed_orders(width: int, grid: Any) -> None:
    """Regression of log error on log steps, for every method with fixed steps, all of them in one set of lanes.

    DPM-Solver++, UniPC and stochastic methods have tests of their own.
    """
    x0 = torch.linspace(0.6, 1.2, 5).double()[:, None].expand(5, width)
    exact = fall_exact(x0, 1.0)
    classical = [entry for entry in ENTRIES if not (entry.exponential or entry.stochastic)]
    jobs = [
        (entry, steps)
        for entry in classical
        for steps in ([64, 128, 256] if entry.kind == "multistep" else [24, 48, 96])
    ]
    admissions = []
    for owner, (entry, steps) in enumerate(jobs):
        start = "rk" if entry.starts else None
        admissions.append(Admission(resolve(solver=entry.name, steps=steps, start=start, grid=grid), x0, owner))
    ended = run(Lanes((width,), torch.float64), fall, admissions)
    errors: dict[str, list[float]] = {}
    for owner, (entry, _) in enumerate(jobs):
        found = torch.stack([ended[owner, k].x for k in range(5)])
        errors.setdefault(entry.name, []).append((found - exact).square().mean().sqrt().item())
    for entry in classical:
        counts = [steps for other, steps in jobs if other is entry]
        observed = slope(counts, errors[entry.name])
        assert entry.order - 0.25 < observed < entry.order + 0.7, (entry.name, observed)


HEUN_EULER = Tableau(
    "heun_euler",
    a=((), (1.0,)),
    b=(0.5, 0.5),
    order=2,
    b_hat=(1.0, 0.0),
    embedded_order=1,
    reference="Hairer I, II.4",
)


@pytest.fixture
def heun_euler() -> Iterator[catalogue.Solver]:
    yield catalogue.register(HEUN_EULER)
    del catalogue._SOLVERS["heun_euler"]


def test_a_registered_tableau_is_a_solver_with_fixed_steps(heun_euler: catalogue.Solver) -> None:
    assert (heun_euler.kind, heun_euler.order, heun_euler.describe()["fsal"]) == ("adaptive", 2, False)
    watched = Watched(decay)
    solution = integrate(watched, ones(), solver="heun_euler", steps=10)
    assert solution.x.item() == integrate(decay, ones(), solver="heun2", steps=10).x.item()
    assert watched.calls == solution.nfe[0] == 20
    with pytest.raises(ValueError, match="already registered"):
        catalogue.register(HEUN_EULER)


@pytest.mark.parametrize("first_step", [None, 0.2])
def test_a_registered_pair_runs_under_error_control(heun_euler: catalogue.Solver, first_step: float | None) -> None:
    watched = Watched(gaussian)
    solution = integrate(watched, ones(), solver="heun_euler", rtol=1e-4, atol=1e-4, first_step=first_step)
    assert solution.status == (Status.SUCCESS,)
    assert abs(solution.x.item() - 2.5) < 2e-3
    accepted, attempts = int(solution.trace.accepted.sum()), len(solution.trace)
    # Without FSAL: v at the start, the trial step, one call per attempt, and v again after each step but the last.
    expected = 1 + (first_step is None) + attempts + accepted - 1
    assert watched.calls == solution.nfe[0] == expected
    assert attempts > 10
    with pytest.raises(SolverError, match="heun_euler has no dense output; give it steps"):
        integrate(gaussian, ones(), solver="heun_euler", save_at=[0.5])


def test_max_nfe_holds_without_fsal(heun_euler: catalogue.Solver) -> None:
    for max_nfe in range(1, 40):
        watched = Watched(gaussian)
        solution = integrate(watched, ones(), solver="heun_euler", rtol=1e-7, atol=1e-7, max_nfe=max_nfe)
        assert watched.calls == solution.nfe[0] <= max_nfe
        assert solution.status == (Status.MAX_NFE,)


@pytest.mark.parametrize("name", ["", "RK5", "rk-5", "dpm++", "3rk"])
def test_names_that_text_could_not_tell_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits and underscores"):
        catalogue.register(replace(HEUN_EULER, name=name))


def _doubled() -> Tableau:
    """Two half steps of rk4, with one whole step as the estimate: more stages than any solver in the catalogue."""
    rk4 = catalogue.find("rk4").tableau
    half, b = rk4.matrix / 2, np.array(rk4.b)
    a = np.zeros((11, 11))
    a[:4, :4] = a[4:8, 4:8] = half
    a[4:8, :4] = b / 2
    a[8, 0], a[9, 8], a[10, 9] = 0.5, 0.5, 1.0
    solution, estimate = np.concatenate([b / 2, b / 2, np.zeros(3)]), np.zeros(11)
    estimate[[0, 8, 9, 10]] = b
    rows = tuple(tuple(a[i, :i].tolist()) for i in range(11))
    pair: dict[str, Any] = {"b_hat": tuple(estimate), "embedded_order": 4, "controller": "pi"}
    return Tableau("rk4_doubled", rows, tuple(solution), 4, "Hairer I, II.4", **pair)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_method_with_more_stages_joins_lanes_that_run_already(compiled: bool) -> None:
    before = [Admission(resolve(solver=name, steps=9), ones(3, 2), owner) for owner, name in enumerate(("ab4", "rk4"))]
    before.append(Admission(resolve(solver="dopri5", rtol=1e-6), ones(3, 2), 2))
    alone = run(Lanes((2,), torch.float64, compiled=compiled), fall, before)
    lanes = Lanes((2,), torch.float64, compiled=compiled)
    lanes.admit(before)
    for _ in range(3):
        x, t = lanes.query()
        assert lanes.absorb(fall(x, t)) is None
    entry = catalogue.register(_doubled())
    try:
        assert entry.slots == catalogue.slots() == 11
        late = [
            Admission(resolve(solver="rk4_doubled", steps=5), ones(3, 2), 3),
            Admission(resolve(solver="rk4_doubled", rtol=1e-7, atol=1e-7), ones(3, 2), 4),
        ]
        together = run(lanes, fall, late)
        assert resolve(solver="rk4_doubled").settings["controller"] == "pi"
    finally:
        del catalogue._SOLVERS["rk4_doubled"]
    for key, ended in alone.items():
        assert torch.equal(together[key].x, ended.x)
        assert together[key].nfe == ended.nfe
    twice = integrate(fall, ones(3, 2), solver="rk4", steps=10)
    for k in range(3):
        assert torch.allclose(together[3, k].x, twice.x[k], rtol=1e-13)
        assert (together[3, k].nfe, together[4, k].status) == (40, Status.SUCCESS)
        assert torch.allclose(together[4, k].x, fall_exact(ones(1, 2), 1.0)[0], rtol=1e-6)


def test_it_is_gone_afterwards() -> None:
    with pytest.raises(SolverError, match="unknown solver 'heun_euler'"):
        resolve(solver="heun_euler", steps=3)


def test_cost_formulas_hold() -> None:
    for name, entry in catalogue.solvers().items():
        steps = 12
        per_step = int(resolve(solver=name, steps=steps).nfe_bound / steps)
        fixed = f"{per_step} N" if per_step > 1 else "N"
        assert entry.cost.endswith((f"fixed: {fixed}", fixed, "(start: rk)"))
        if entry.starts:
            extra = resolve(solver=name, steps=steps, start="rk").nfe_bound - steps
            assert entry.cost == f"N (start: ramp), N + {extra} (start: rk)"
    assert len(times("uniform", 12, (0.0, 1.0))) == 13
