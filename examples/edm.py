"""Train a small EDM denoiser to import into Pathline, and sample it in a plain loop as its authors do.

Karras et al., "Elucidating the design space of diffusion-based generative models", 2022: a network F with their
preconditioning is a denoiser D(x, sigma), which Pathline serves as a velocity (docs/import.md). With the import below,
a request that names no solver gets the steps of `sample`:

    .venv/bin/python examples/edm.py --out edm.pt2
"""

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

STEPS = 18
SIGMA_MIN, SIGMA_MAX, RHO = 0.002, 80.0, 7.0
SIGMA_DATA = 0.5


class Denoiser(nn.Module):
    """D(x, sigma) = c_skip x + c_out F(c_in x, log(sigma) / 4), with the paper's factors (table 1)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Estimate the data behind states x (rows, 2) with noise sigma (rows,)."""
        sigma = sigma[:, None]
        size = (sigma**2 + SIGMA_DATA**2) ** 0.5
        answer = self.layers(torch.cat((x / size, sigma.log() / 4), dim=1))
        return (SIGMA_DATA / size) ** 2 * x + sigma * SIGMA_DATA / size * answer


def train(steps: int) -> Denoiser:
    """Fit a denoiser to two moons (section 5 of the paper: log-normal noise, weights that balance the loss)."""
    torch.manual_seed(0)
    points = torch.tensor(make_moons(4000, noise=0.05, random_state=0)[0], dtype=torch.float32)
    points = SIGMA_DATA * (points - points.mean(0)) / points.std(0)
    denoiser = Denoiser()
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=3e-3)
    for _ in range(steps):
        data = points[torch.randint(len(points), (256,))]
        sigma = torch.exp(1.2 * torch.randn(256) - 1.2)
        off = denoiser(data + sigma[:, None] * torch.randn_like(data), sigma) - data
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
        loss = (weight[:, None] * off**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return denoiser.eval().requires_grad_(False)


def sigmas() -> list[float]:
    """Return the paper's noise levels (eq. 5), and 0 at the end."""
    high, low = SIGMA_MAX ** (1 / RHO), SIGMA_MIN ** (1 / RHO)
    return [*((high + k / (STEPS - 1) * (low - high)) ** RHO for k in range(STEPS)), 0.0]


def sample(denoiser: Callable[[Tensor, Tensor], Tensor], noise: Tensor) -> Tensor:
    """Sample by the paper's deterministic algorithm 1, without churn, with Euler steps, from unit noise (rows, 2)."""
    x = SIGMA_MAX * noise
    for now, after in itertools.pairwise(sigmas()):
        x = x + (after - now) * (x - denoiser(x, torch.full((len(x),), now))) / now
    return x


def save(denoiser: Denoiser, file: Path) -> None:
    """Export the denoiser for any number of rows."""
    rows = torch.export.Dim("rows", min=1, max=8192)
    example = (torch.randn(4, 2), torch.rand(4) + 0.1)
    torch.export.save(torch.export.export(denoiser, example, dynamic_shapes=({0: rows}, {0: rows})), file)


def options(file: Path) -> list[str]:
    """Return the arguments of `python -m models` that import it with its authors' steps."""
    convention = ["--predicts", "x0", "--path", "edm", "--start", f"{SIGMA_MAX:g}", "--end", f"{SIGMA_MIN:g}"]
    steps = ["--solver", "euler", "--own-times", ",".join(map(repr, sigmas()))]
    return ["import", str(file), "--program", "--event-shape", "2", "--name", "edm", *convention, *steps]


def main(arguments: list[str] | None = None) -> int:
    """Train, export, and print how to import it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("edm.pt2"), help="file for the program (default: edm.pt2)")
    parser.add_argument("--steps", type=int, default=3000, help="training steps (default: 3000)")
    parsed = parser.parse_args(arguments)
    save(train(parsed.steps), parsed.out)
    print("PATHLINE_ALLOW_PROGRAMS=true .venv/bin/python -m models", shlex.join(options(parsed.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
