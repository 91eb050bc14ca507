"""Stochastic samplers on exact fields and on an imperfect network: `python -m studies.stochastic`.

It prints the tables of studies/stochastic.md; `python -m studies.stochastic orders` prints one.
"""

import argparse
import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.noise import noise
from solvers import integrate
from solvers.stochastic import SCHEDULES, Diffusion, weights
from training.evaluation import swd, swd_by_chance

TIMES = (0.25, 0.5, 0.75, 1.0)
SCALES = (0.5, 1.0, 2.0)
STEPS = (10, 20, 40, 80, 160, 320)


def main() -> None:
    """Print the tables named, or all."""
    tables = {"marginals": marginals, "orders": lambda _: orders(), "moons": moons}
    parser = argparse.ArgumentParser(description="Measure stochastic samplers.")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("tables", nargs="*", choices=list(tables))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(*(tables[name](arguments.samples) for name in arguments.tables or tables), sep="\n\n")


def marginals(samples: int) -> str:
    """Distances of the marginals of `sde_heun-100` from exact samples."""
    lines = ["| field | scale | t | mean off | deviation off | SWD | by chance |", "|---" * 7 + "|"]
    for number, (field, scale) in enumerate(itertools.product((Gaussian(), Mixture().float()), SCALES)):
        lines += _marginals(samples, 10 * number, field, scale)
    return "\n".join(lines)


def _marginals(samples: int, seed: int, field: Gaussian | Mixture, scale: float) -> list[str]:
    x0, diffusion = noise(seed, 0, samples, (2,)), {"scale": scale}
    saved = integrate(field, x0, solver="sde_heun-100", diffusion=diffusion, save_at=TIMES, seed=seed).saved
    assert saved is not None
    lines = []
    for place, t in enumerate(TIMES):
        reached = saved[:, place].double().numpy()
        exact = _exact(field, t, samples, seed + 1 + place).double().numpy()
        spread = exact.std(axis=0)
        mean = np.abs((reached.mean(axis=0) - exact.mean(axis=0)) / spread).max() * math.sqrt(samples / 2)
        std = np.abs(reached.std(axis=0) / spread - 1).max() * math.sqrt(samples)
        lines.append(
            f"| {field.config.architecture} | {scale:g} | {t:g} | {mean:.1f} | {std:.1f} | "
            f"{swd(reached, exact, 50):.4f} | {swd_by_chance(reached, exact):.4f} |"
        )
    return lines


def _exact(field: Gaussian | Mixture, t: float, samples: int, seed: int) -> Tensor:
    """Samples of the exact marginal at t: (1 - t) x0 + t x1."""
    x0, x1 = noise(seed, 0, samples, (2,)), noise(seed, samples, samples, (2,)) * field.config.s
    if isinstance(field, Gaussian):
        return (1 - t) * x0 + t * (x1 + field.config.m)
    chosen = torch.randint(len(field.means), (samples,), generator=torch.Generator().manual_seed(seed))
    return (1 - t) * x0 + t * (x1 + field.means[chosen].float())


def orders() -> str:
    """Error of the variance at t = 1 on the field `gaussian`, which is linear: propagated without sampling."""
    lines = [
        "| solver | schedule | " + " | ".join(f"N = {n}" for n in STEPS) + " | order |",
        "|---" * (3 + len(STEPS)) + "|",
    ]
    for (stages, solver), schedule in itertools.product(((1, "sde"), (2, "sde_heun")), SCHEDULES):
        errors = [_variance_error(stages, n, schedule) for n in STEPS]
        order = math.log2(errors[-2] / errors[-1])
        lines.append(
            f"| {solver} | {schedule} | " + " | ".join(f"{error:.1e}" for error in errors) + f" | {order:.2f} |"
        )
    return "\n".join(lines)


def _variance_error(stages: int, steps: int, schedule: str) -> float:
    times = np.linspace(0, 1, steps + 1)
    h, rate = np.diff(times), (times / 4 - (1 - times)) / ((1 - times) ** 2 + times**2 / 4)
    (a, b, mix), variance = weights(times, stages, Diffusion(1.0, schedule)), 1.0
    for n in range(steps):
        last = stages * (n + 1) - 1
        of_x, of_z = 1 + mix[last, 2] + h[n] * b[last, 0] * rate[n], mix[last, 3]
        if stages == 2:
            pull = h[n] * b[last, 1] * rate[n + 1]
            of_x += pull * (1 + mix[last, 0] + h[n] * a[last, 0] * rate[n])
            of_z += pull * mix[last, 1]
        variance = of_x**2 * variance + of_z**2
    return abs(variance - 0.25)


def moons(samples: int) -> str:
    """SWD to data of a network that was trained for 400 steps only, by solver and NFE."""
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=64, blocks=2))
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(400):
        x1, x0, t = torch.from_numpy(_moons(512)).float(), torch.randn(512, 2), torch.rand(512)
        v = network((1 - t[:, None]) * x0 + t[:, None] * x1, t)
        optimiser.zero_grad()
        (v - (x1 - x0)).square().mean().backward()
        optimiser.step()
    network.requires_grad_(False)
    data, other = _moons(samples), _moons(samples)
    calls = (10, 20, 50, 100, 200)
    lines = ["| solver | " + " | ".join(f"NFE {n}" for n in calls) + " |", "|---" * (1 + len(calls)) + "|"]
    for name, stages, scale in (
        ("euler", 1, 0.0), ("heun2", 2, 0.0),
        *((name, stages, scale) for name, stages in (("sde", 1), ("sde_heun", 2)) for scale in SCALES),
    ):  # fmt: skip
        cells = []
        for n in calls:
            diffusion = {"scale": scale} if scale else None
            x = integrate(network, noise(0, 0, samples, (2,)), solver=f"{name}-{n // stages}", diffusion=diffusion).x
            cells.append(f"{swd(x.double().numpy(), data):.4f}")
        lines.append(f"| {name}{f', scale {scale:g}' if scale else ''} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Real data from real data: {swd(other, data):.4f}."])


_SOURCE = np.random.default_rng(0)


def _moons(samples: int) -> NDArray[np.float64]:
    """Two half circles with noise, standardised roughly."""
    angle, second = np.pi * _SOURCE.random(samples), _SOURCE.random(samples) < 0.5
    x = np.where(second, 1 - np.cos(angle), np.cos(angle))
    y = np.where(second, 0.5 - np.sin(angle), np.sin(angle))
    return (np.column_stack((x - 0.5, y - 0.25)) + 0.05 * _SOURCE.standard_normal((samples, 2))) / 0.7


if __name__ == "__main__":
    main()
