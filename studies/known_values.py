"""Known values: how near `replace` and `guided` come to the exact conditional, on pictures, and on chunks of actions.

`python -m studies.known_values` prints the tables of studies/known_values.md. `--digits CHECKPOINT --figure FILE.png`
draws digits of which the upper half is known.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.noise import noise
from solvers import integrate, known_values
from solvers.derived import pullback
from solvers.known_values import KnownValues
from training.data_config import DigitsData
from training.known_data import read_digits

Velocity = Callable[[Tensor, Tensor], Tensor]

DIM, HALF = 8, 4
MEAN = torch.linspace(-1, 1, DIM, dtype=torch.float64)
PLACES = torch.arange(DIM)
COVARIANCE = 0.8 ** (PLACES[:, None] - PLACES).abs().double() * 0.64
"""Of the Gaussian: neighbours correlate with 0.8, each with a deviation of 0.8."""

CHUNK, COMMITTED = 16, 4
STEPS = (5, 10, 20, 50)


def main() -> None:
    """Print the tables, and draw the figure."""
    parser = argparse.ArgumentParser(description="Measure known values.")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--digits", type=Path, help="folder of a checkpoint of the recipe digits")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(conditionals(options.samples), chunks(), sep="\n\n")
    if options.digits is not None:
        picture(options.digits, options.figure)


def guided(velocity: Velocity, known: KnownValues) -> Velocity:
    """The velocity that is guided towards known values."""
    constants = known.constants()

    def field(x: Tensor, t: Tensor) -> Tensor:
        v, pull = pullback(velocity, x, t)
        return known_values.guided(x, t, v, constants.expand(len(x), -1), pull)

    return field


def gaussian(x: Tensor, t: Tensor) -> Tensor:
    """The velocity of straight paths to the Gaussian, exactly."""
    at = t[0]  # fixed steps: one time for all
    of_path = (1 - at) ** 2 * torch.eye(DIM, dtype=x.dtype) + at**2 * COVARIANCE
    rate = torch.linalg.solve(of_path, at * COVARIANCE - (1 - at) * torch.eye(DIM, dtype=x.dtype))
    return MEAN + (x - at * MEAN) @ rate


def conditionals(samples: int) -> str:
    """Bias of mean and covariance of the free half, given the other half, from the exact conditional."""
    y = MEAN[:HALF] + 0.8 * torch.tensor([1.0, 1.0, -0.5, 1.5], dtype=torch.float64)
    known = torch.cat((y, torch.full((HALF,), math.nan, dtype=torch.float64)))[None]
    gain = torch.linalg.solve(COVARIANCE[:HALF, :HALF], COVARIANCE[:HALF, HALF:]).T
    mean = MEAN[HALF:] + gain @ (y - MEAN[:HALF])
    covariance = COVARIANCE[HALF:, HALF:] - gain @ COVARIANCE[:HALF, HALF:]
    x0 = noise(0, 0, samples, (DIM,), torch.float64)
    lines = [
        "| mode | solver | " + " | ".join(f"N = {n}" for n in STEPS) + " |",
        "|---" * (2 + len(STEPS)) + "|",
    ]
    weights = (~known.isnan()).double()
    fields = {f"guided, at most {bound:g}": guided(gaussian, KnownValues(known, weights, bound)) for bound in (5, 20)}
    fields["guided, no bound"] = guided(gaussian, KnownValues(known, weights, 1e6))
    cases: list[tuple[str, str, Velocity, dict[str, Any]]] = []
    for solver in ("euler", "heun2", "rk4", "ab3", "sde"):
        cases.append(("replace", solver, gaussian, {"known": known}))
    cases += [(f"replace, resample {r}", "euler", gaussian, {"known": known, "resample": r}) for r in (2, 5, 10)]
    cases += [(name, solver, field, {}) for name, field in fields.items() for solver in ("euler", "heun2")]
    cases.append(("nothing known", "heun2", gaussian, {}))
    for name, solver, field, more in cases:
        cells = []
        for steps in STEPS:
            x = integrate(field, x0, solver=solver, steps=steps, seed=1, **more).x
            free = x[:, HALF:]
            off = (free.mean(dim=0) - mean) / covariance.diagonal().sqrt()
            wide = torch.linalg.matrix_norm(torch.cov(free.T) - covariance) / torch.linalg.matrix_norm(covariance)
            missed = (x[:, :HALF] - y).square().mean().sqrt()
            cells.append(f"{off.abs().max():.2f}, {wide:.2f}, {missed:.2f}")
        lines.append(f"| {name} | {solver} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def chunks() -> str:
    """The jump between committed actions and those that continue them."""
    network = policy()
    old = integrate(network, noise(0, 0, 2000, (CHUNK,)), solver="heun2-10").x
    begun = old[:, CHUNK // 2 : CHUNK // 2 + COMMITTED]  # what is being carried out while the next chunk is sampled
    nothing = torch.full((len(old), CHUNK - COMMITTED), math.nan)
    known = torch.cat((begun, nothing), dim=1)
    hard = (~known.isnan()).float()
    soft, rest = hard.clone(), old[:, CHUNK // 2 + COMMITTED :]
    soft[:, COMMITTED : COMMITTED + rest.shape[1]] = torch.linspace(0.8, 0.2, rest.shape[1])
    later = known.clone()
    later[:, COMMITTED : COMMITTED + rest.shape[1]] = rest
    x0 = noise(1, 0, len(old), (CHUNK,))
    modes: dict[str, tuple[Velocity, dict[str, Any]]] = {
        "nothing known": (network, {}),
        "replace": (network, {"known": known}),
        "replace, resample 3": (network, {"known": known, "resample": 3}),
        "guided": (guided(network, KnownValues(known, hard)), {}),
        "guided, soft weights": (guided(network, KnownValues(later, soft)), {}),
    }
    usual, bend = (_rms(old.diff(n=order, dim=1)) for order in (1, 2))
    lines = ["| mode | committed actions off | jump at the border | bend there |", "|---" * 4 + "|"]
    lines.append(f"| inside a chunk | | {usual:.3f} | {bend:.3f} |")
    for name, (field, more) in modes.items():
        new = integrate(field, x0, solver="euler", steps=10, **more).x
        whole = torch.cat((begun, new[:, COMMITTED:]), dim=1)  # as the robot moves
        jump = whole[:, COMMITTED] - whole[:, COMMITTED - 1]
        bent = whole[:, COMMITTED - 2 : COMMITTED + 2].diff(n=2, dim=1)
        lines.append(f"| {name} | {_rms(new[:, :COMMITTED] - begun):.3f} | {_rms(jump):.3f} | {_rms(bent):.3f} |")
    return "\n".join(lines)


def policy() -> ResidualMLP:
    """A flow of chunks of actions: parts of sines of many phases, directions and speeds, trained for a minute."""
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(dim=CHUNK, hidden=128, blocks=2))
    steps = 4000
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        phase, speed = 2 * math.pi * torch.rand(256, 1), 0.15 + 0.25 * torch.rand(256, 1)
        x1, x0, t = 1.4 * torch.sin(phase + speed * torch.arange(CHUNK)), torch.randn(256, CHUNK), torch.rand(256)
        v = network((1 - t[:, None]) * x0 + t[:, None] * x1, t)
        optimiser.zero_grad()
        (v - (x1 - x0)).square().mean().backward()
        optimiser.step()
        schedule.step()
    return network.requires_grad_(False)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def picture(checkpoint: Path, file: Path) -> None:
    """Draw digits of which the upper half is known, one column each: the digit, then samples of each mode."""
    model = load(checkpoint)
    states = torch.from_numpy(read_digits(DigitsData(name="digits"), 0).reference[:8]).float().reshape(8, 64)
    truth = model.decoder.decode(states).reshape(8, 64)
    mask = (torch.arange(64) < 32).float().expand(8, -1)
    known, x0 = torch.where(mask > 0, states, math.nan), noise(0, 0, 8, (64,))
    rows = [truth]
    cases: list[tuple[Velocity, dict[str, Any]]] = [
        (model.velocity, {"known": known}),
        (model.velocity, {"known": known, "resample": 5}),
        (guided(model.velocity, KnownValues(known, mask)), {}),
    ]
    for field, more in cases:
        rows.append(model.decoder.decode(integrate(field, x0, solver="euler", steps=40, **more).x).reshape(8, 64))
    sheet = torch.stack(rows).reshape(len(rows), 8, 8, 8)
    sheet[0, :, 4:] = sheet[0, :, 4:] * 0.5 + 0.25  # what is not told
    sheet = torch.nn.functional.pad(sheet, (1, 1, 1, 1)).transpose(1, 2)
    pixels = (255 * (1 - sheet.reshape(len(rows) * 10, 80))).clamp(0, 255).to(torch.uint8).numpy()
    image = Image.fromarray(pixels).resize((640, 80 * len(rows)), Image.Resampling.NEAREST)
    image.save(file, optimize=True)


if __name__ == "__main__":
    main()
