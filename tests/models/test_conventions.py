"""Networks of any prediction on any path are served as the velocity of a straight path, checked on exact fields."""

import itertools
import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from models.conventions import TimeCard, adapt
from solvers import integrate, log_density

MEANS = torch.tensor([[2.0, -1.0], [-1.5, 0.5], [0.3, 1.2]], dtype=torch.float64)
SPREAD = 0.4


def estimates(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The exact E[data | x] and E[noise | x] of x = a data + b noise, for data of three Gaussians."""
    a, b = a[:, None], b[:, None]
    variance = a.square() * SPREAD**2 + b.square()
    squared = (x[:, None] - a[:, :, None] * MEANS).square().sum(-1)
    mean = ((-squared / (2 * variance)).softmax(1)[:, :, None] * MEANS).sum(1)
    off = (x - a * mean) / variance
    return mean + a * SPREAD**2 * off, b * off


@torch.inference_mode(False)
@torch.enable_grad()
def coefficients(time: TimeCard, own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, b and their derivatives by u at the network's own times, written independently of the code under test."""
    shape, u = time.shape, torch.tensor(own.tolist(), dtype=torch.float64) / time.scale
    if time.noise_at == 0:
        u = shape.noisiest - u
    u = u.clone().requires_grad_()
    if time.path == "linear":
        a, b = 1 - u, u
    elif time.path == "edm":
        a, b = 1 + 0 * u, u
    elif shape.kind == "beta":
        a = torch.exp(-(shape.beta_max - shape.beta_min) * u**2 / 4 - shape.beta_min * u / 2)
        b = (1 - a**2).sqrt()
    elif shape.kind == "cosine":
        w = shape.offset
        a = torch.cos((u + w) / (1 + w) * math.pi / 2) / math.cos(w / (1 + w) * math.pi / 2)
        b = (1 - a**2).sqrt()
    else:
        power = 2 if shape.betas == "scaled_linear" else 1
        ends = shape.beta_first ** (1 / power), shape.beta_last ** (1 / power)
        betas = torch.linspace(*ends, shape.steps, dtype=torch.float64) ** power
        kept = (1 - betas).cumprod(0)
        log_sigma = ((1 - kept) / kept).log() / 2
        below = u.detach().floor().clamp(0, shape.steps - 2).long()
        sigma = (log_sigma[below] + (u - below) * (log_sigma[below + 1] - log_sigma[below])).exp()
        a = (1 + sigma**2).rsqrt()
        b = sigma * a
    found = []
    for each in (a, b):
        found += torch.autograd.grad(each.sum(), u, retain_graph=True, allow_unused=True)
    da, db = (torch.zeros_like(u) if each is None else each for each in found)
    return a.detach(), b.detach(), da, db


class Exact(nn.Module):
    """The exact network of a convention."""

    def __init__(self, time: TimeCard) -> None:
        super().__init__()
        self.time = time
        self.times: list[Tensor] = []

    def forward(self, x: Tensor, own: Tensor, condition: Any = None) -> Tensor:
        self.times.append(own)
        a, b, da, db = coefficients(self.time, own)
        data, noise = estimates(x, a, b)
        a, b, da, db = (each[:, None] for each in (a, b, da, db))
        away = 1 if self.time.noise_at == 1 else -1
        predicted = {
            "eps": noise,
            "x0": data,
            "v": (a * noise - b * data) / (a**2 + b**2).sqrt(),
            "velocity": away * (da * data + db * noise),
        }
        return self.time.sign * predicted[self.time.predicts]


SCHEDULES: dict[str, list[dict[str, Any] | None]] = {
    "linear": [None],
    "vp": [
        None,
        {"kind": "cosine"},
        {"kind": "steps"},
        {"kind": "steps", "betas": "scaled_linear", "beta_first": 0.00085, "beta_last": 0.012},
    ],
    "edm": [None],
}


def cards() -> list[TimeCard]:
    """Every prediction on every path with every schedule, and each direction, sign and scale at least once."""
    made = []
    for predicts, path in itertools.product(("velocity", "eps", "x0", "v"), SCHEDULES):
        for schedule in SCHEDULES[path]:
            steps = schedule is not None and schedule["kind"] == "steps"
            if steps and predicts == "velocity":
                continue
            given = {"predicts": predicts, "path": path, "schedule": schedule}
            made.append(TimeCard.model_validate({"noise_at": 1, "data_at": 0, **given}))
            if path != "edm":
                made.append(TimeCard.model_validate({"scale": 2.0 if steps else 1000.0, "sign": -1, **given}))
    return made


@pytest.mark.parametrize("time", cards(), ids=lambda t: f"{t.predicts}-{t.path}-{t.noise_at}-{t.schedule}")
def test_the_velocity_is_the_exact_one_of_the_straight_path(time: TimeCard) -> None:
    network = Exact(time)
    field = adapt(network, time)
    a0, b0 = time.first_state
    t = torch.linspace(0, 1, 41, dtype=torch.float64)
    data, noise = t + (1 - t) * a0, (1 - t) * b0
    z = torch.randn(41, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = field(z, t)
    assert found.isfinite().all()
    d, e = estimates(z, data, noise)
    # With less noise than the network knows, it answers as for its least noise.
    known = noise > time.sigmas[1] * data
    torch.testing.assert_close(found[known], ((1 - a0) * d - b0 * e)[known], rtol=1e-8, atol=1e-8)
    evaluated = torch.cat(network.times)
    assert float(evaluated.min()) >= -1e-9
    assert float(evaluated.max()) <= max(time.own(time.levels[0]), time.own(time.levels[1])) * (1 + 1e-9)


FLOWS = [card for card in cards() if (card.predicts, card.noise_at) in {("eps", 1), ("v", 0)}]
"""Each path and schedule in both directions."""


@pytest.mark.parametrize("time", FLOWS, ids=lambda t: f"{t.predicts}-{t.path}-{t.noise_at}-{t.schedule}")
def test_samples_are_those_of_the_exact_flow_from_the_start_of_its_authors(time: TimeCard) -> None:
    a0, b0 = time.first_state
    z0 = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tolerance = 1e-7 if time.sigmas[1] == 0 else 1e-5
    solve: dict[str, Any] = {"solver": "dopri5", "rtol": tolerance, "atol": tolerance, "max_nfe": 100_000}
    found = integrate(adapt(Exact(time), time), z0, **solve)

    def velocity(z: Tensor, t: Tensor) -> Tensor:
        left = 1 - t
        d, e = estimates(z, t + left * a0, left * b0)
        return (1 - a0) * d - b0 * e

    expected = integrate(velocity, z0, **solve)
    # A chain of steps has kinks in its noise, and one with an end stops short of the data.
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=1e-5 if time.sigmas[1] == 0 else 2e-3)


@pytest.mark.parametrize("predicts", ["eps", "x0"])
def test_euler_steps_are_those_of_the_network_s_authors(predicts: str) -> None:
    # Karras et al. 2022, algorithm 1 without its correction, as a plain loop over their noise levels.
    time = TimeCard.model_validate({"noise_at": 1, "data_at": 0, "predicts": predicts, "path": "edm"})
    network = Exact(time)
    ramp = torch.arange(8, dtype=torch.float64) / 7
    sigmas = [*(80 ** (1 / 7) + ramp * (0.002 ** (1 / 7) - 80 ** (1 / 7))).pow(7).tolist(), 0.0]
    n = torch.randn(5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = sigmas[0] * n
    for now, after in itertools.pairwise(sigmas):
        answer = network(x, torch.full((5,), now, dtype=torch.float64))
        x = x + (after - now) * (answer if predicts == "eps" else (x - answer) / now)
    grid = [time.time_of(sigma) for sigma in sigmas]
    found = integrate(adapt(network, time), n, solver="euler", grid=grid)
    torch.testing.assert_close(found.x, x, rtol=1e-10, atol=1e-10)


CHAIN: dict[str, Any] = {"noise_at": 1, "data_at": 0, "predicts": "eps", "path": "vp", "schedule": {"kind": "steps"}}


@pytest.mark.parametrize(("predicts", "stop"), [("eps", None), ("eps", 0.0), ("x0", 0.0), ("v", 0.0)])
def test_ddim_steps_of_a_chain_are_euler_steps(predicts: str, stop: float | None) -> None:
    """Song, Meng & Ermon 2021, eq. 12 with eta = 0, to data or to the noise of step 0."""
    time = TimeCard.model_validate({**CHAIN, "predicts": predicts, "start": 981, "stop": stop})
    network = Exact(time)
    kept = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)
    own = list(range(981, 0, -70))
    n = torch.randn(3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = n
    end = torch.tensor(1.0) if stop is None else kept[0]
    for now, after in itertools.pairwise([*own, None]):
        assert now is not None
        answer = network(x, torch.full((3,), float(now), dtype=torch.float64))
        a, b = kept[now].sqrt(), (1 - kept[now]).sqrt()
        data = {"eps": (x - b * answer) / a, "x0": answer, "v": a * x - b * answer}[predicts]
        noise = {"eps": answer, "x0": (x - a * answer) / b, "v": b * x + a * answer}[predicts]
        next_kept = end if after is None else kept[after]
        x = next_kept.sqrt() * data + (1 - next_kept).sqrt() * noise
    found = integrate(adapt(network, time), n, solver="euler", grid=time.grid(own))
    torch.testing.assert_close(found.x, x, rtol=1e-9, atol=1e-9)


CHAINS: list[dict[str, Any]] = [
    *({"schedule": {"kind": "steps", "betas": betas}} for betas in ("linear", "scaled_linear", "squaredcos_cap_v2")),
    {"schedule": {"kind": "steps"}, "stop": 0.0},
    {"schedule": {"kind": "steps"}, "scale": 0.001, "start": 0.981},
    {"schedule": {"kind": "steps"}, "noise_at": 0, "data_at": 1, "start": 18},
    {"schedule": {"kind": "cosine"}, "scale": 1000.0, "predicts": "v"},
    {"path": "linear", "schedule": None, "scale": 1000.0, "predicts": "velocity", "start": None},
    {"path": "linear", "schedule": None, "scale": 1000.0, "predicts": "velocity", "noise_at": 0, "data_at": 1,
     "start": None},
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fields", CHAINS, ids=str)
def test_whole_steps_arrive_exactly(fields: dict[str, Any], dtype: torch.dtype) -> None:
    """So that a network may take its time as an integer: t.long() would make 220 of 220.99998."""
    time = TimeCard.model_validate({**CHAIN, "start": 981, **fields})
    times: list[Tensor] = []

    def network(x: Tensor, own: Tensor, condition: Any = None) -> Tensor:
        times.append(own)
        return torch.zeros_like(x)

    class Recorded(nn.Module):
        forward = staticmethod(network)

    first = time.own(time.levels[0])
    steps = range(981, 0, -1) if time.noise_at == 1 else range(18, 999)
    own = [first, *(k * (time.scale if time.scale < 1 else 1.0) for k in steps[1:])]
    t = torch.tensor(time.grid(own)[:-1], dtype=dtype)
    adapt(Recorded(), time)(torch.zeros(len(t), 1, dtype=dtype), t)
    assert times[0].tolist() == torch.tensor(own, dtype=dtype).tolist()
    between = adapt(Recorded(), time)
    t = torch.tensor([time.time_of(own) for own in (500.4, 500.5)] if time.scale >= 1 else [0.5], dtype=dtype)
    times.clear()
    between(torch.zeros(len(t), 1, dtype=dtype), t)
    if time.scale >= 1:
        torch.testing.assert_close(times[0], torch.tensor([500.4, 500.5], dtype=dtype), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "own", "calls"),
    [
        ({"start": 981}, [981, 961, 1, 0], 3),
        ({"start": 981}, [981, 961, 1], 3),
        ({"start": 981}, [981, 961, 1, -1], 3),
        ({"start": 980}, [980, 960, 0, -1], 3),
        ({"start": 981, "end": 1}, [981, 961, 1], 3),
        ({"start": 981, "stop": 0}, [981, 961, 1, 0], 3),
        ({"start": 981, "stop": 0}, [981, 961, 1], 3),
        ({"noise_at": 0, "data_at": 1, "start": 18}, [18, 500, 998, 999], 3),
        ({"noise_at": 0, "data_at": 1, "start": 18}, [18, 500, 998], 3),
        ({"schedule": {"kind": "cosine"}}, [0.999, 0.5, 0.1], 3),
        ({"schedule": None}, [1, 0.5, 0.1, 0], 3),
        ({"schedule": None, "path": "edm"}, [80, 10, 0.002], 3),
        ({"schedule": None, "path": "edm"}, [80, 10, 0.002, 0], 3),
        ({"schedule": None, "path": "linear", "predicts": "velocity", "scale": 1000}, [1000, 600, 300], 3),
        ({"schedule": None, "path": "linear", "predicts": "velocity", "scale": 1000}, [1000, 600, 300, 0], 3),
    ],
    ids=str,
)
def test_own_times_end_at_data_however_their_end_is_written(
    fields: dict[str, Any], own: list[float], calls: int
) -> None:
    time = TimeCard.model_validate({**CHAIN, **fields})
    grid = time.grid(own)
    assert (grid[0], grid[-1], len(grid)) == (0.0, 1.0, calls + 1)
    assert grid[:calls] == [time.time_of(each) for each in own[:calls]]
    assert all(a < b for a, b in itertools.pairwise(grid))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"noise_at": 1}, "one must be 0 and the other 1"),
        ({"path": "edm", "predicts": "x0"}, "sigma grows with the noise; noise_at must be 1"),
        ({"path": "vp", "schedule": {"kind": "sigma"}}, "does not fit path 'vp'; use one of beta, cosine, steps"),
        ({"path": "vp", "schedule": {"kind": "steps"}}, "a chain of steps has no derivative; use eps, x0 or v"),
        ({"predicts": "eps", "start": 0.0}, "start a little later, such as at 0.001"),
        ({"predicts": "x0", "end": 1.0}, "end a little earlier, such as at 0.999"),
        ({"predicts": "v", "start": 1.5}, "both within the schedule"),
        ({"predicts": "v", "start": 0.9, "end": 0.1}, "start must be noisier than end"),
        ({"predicts": "v", "start": math.nan}, "finite"),
        ({"predicts": "v", "start": 0.1, "stop": 0.05}, "stop is 0.05; it must be less noisy than the start"),
        ({"predicts": "v", "stop": 1.5}, "stop is 1.5; .* within the schedule"),
        ({"start_scale": 0}, "greater than 0"),
        ({"path": "vp", "schedule": {"kind": "beta", "beta_max": 1000}}, "less than or equal to 100"),
        ({"path": "vp", "schedule": {"kind": "steps", "beta_last": 0.9, "steps": 60000}}, "has no data left"),
    ],
)
def test_a_convention_that_makes_no_sense_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TimeCard.model_validate(fields)


def test_a_card_of_an_earlier_release_keeps_its_bytes() -> None:
    assert TimeCard().model_dump(mode="json") == {"noise_at": 0, "data_at": 1, "scale": 1.0, "sign": 1}
    message = {"noise_at": 1, "data_at": 0, "scale": 1.0, "sign": 1, "predicts": "eps", "path": "vp"}
    assert TimeCard.model_validate(message).model_dump(mode="json") == message


@pytest.mark.parametrize(
    "fields",
    [
        {"predicts": "x0", "path": "edm"},
        {"predicts": "eps", "path": "vp"},
        {"predicts": "v", "path": "vp", "schedule": {"kind": "cosine"}},
    ],
)
def test_densities_are_those_of_the_data(fields: dict[str, Any]) -> None:
    time = TimeCard.model_validate({"noise_at": 1, "data_at": 0, **fields})
    x = torch.tensor([[2.0, -1.0], [0.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    found = log_density(adapt(Exact(time), time), x, rtol=1e-6, atol=1e-6)
    squared = (x[:, None] - MEANS).square().sum(-1)
    exact = (-squared / (2 * SPREAD**2)).logsumexp(1) - math.log(3 * 2 * math.pi * SPREAD**2)
    torch.testing.assert_close(found.log_p, exact, rtol=0, atol=0.1)


def test_cards_compare_after_their_tables_were_used() -> None:
    chains = [
        TimeCard.model_validate(
            {"path": "vp", "predicts": "eps", "scale": 1.0, "schedule": {"kind": "steps", "steps": steps}}
        )
        for steps in (1000, 1000, 900)
    ]
    assert [chain.shape.level(torch.ones(1, dtype=torch.float64)).item() > 0 for chain in chains] == [True] * 3
    assert chains[0] == chains[1] != chains[2]
