"""A small imported latent flow for tests: a prelude before its network, a decoder after it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

HIGH = 5.0
"""The programs fail above this: the prelude for a larger `strength`, the decoder for a larger first number."""


def _checked(values: Tensor, table: Tensor) -> Tensor:
    """Return zeros (rows,); raise for a value over `HIGH`."""
    return nn.functional.embedding((values > HIGH).long() * 100, table)[:, 0]


class Encoder(nn.Module):
    """A prelude: tokens (2, 8) of a picture (3, 4, 4), or of none, times a strength; and a mask of valid tokens."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.see, self.none = nn.Linear(48, 16), nn.Parameter(torch.randn(2, 8))
        self.register_buffer("table", torch.zeros(2, 1))

    def forward(self, image: Tensor, missing: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
        strength = strength + _checked(strength, self.table)
        tokens = torch.tanh(self.see(image.flatten(1))).reshape(-1, 2, 8)
        tokens = torch.where(missing[:, None, None], self.none, tokens) * strength[:, None, None]
        return tokens, tokens.mean(2) > -0.2


class Velocity(nn.Module):
    """A velocity of 4 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4 + 1 + 8 + 3, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, t: Tensor, tokens: Tensor, counts: Tensor, state: Tensor) -> Tensor:
        pooled = (tokens * counts.to(x.dtype)[..., None]).sum(1)
        return self.last(torch.tanh(self.first(torch.cat((x, t[:, None], pooled, state), 1))))


class Picture(nn.Module):
    """A decoder to pictures (3, 2, 2) from 4 numbers."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 12)
        self.register_buffer("table", torch.zeros(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        odd = _checked(x[:, 0], self.table) + torch.log(HIGH - x[:, 1].clamp(max=HIGH)).clamp(min=-torch.inf) * 0
        return self.last(torch.tanh(self.first(x))).reshape(-1, 3, 2, 2) + odd[:, None, None, None]


CONDITIONS: dict[str, Any] = {
    "image": {"dtype": "uint8", "scale": 1 / 255, "null": {"flag": "missing"}},
    "strength": {"default": 1.0},
    "state": {"null": "zeros"},
}


class Latent:
    """The three modules.

    Attributes:
        path: of the checkpoint.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder, self.velocity, self.decoder = (
            each.eval().requires_grad_(False) for each in (Encoder(), Velocity(), Picture())
        )
        self.path = Path()


def export(module: nn.Module, given: tuple[Tensor, ...], file: Path) -> Path:
    """Write the program of a module for any number of rows."""
    rows = torch.export.Dim("rows", max=1024)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(torch.export.export(module, given, dynamic_shapes=({0: rows},) * len(given)), file)
    return file


def exported(made: Latent, folder: Path) -> dict[str, Path]:
    """Export all three programs and return their files."""
    velocity = (torch.randn(4, 4), torch.rand(4), torch.randn(4, 2, 8), torch.ones(4, 2) > 0, torch.randn(4, 3))
    return {
        "velocity": export(made.velocity, velocity, folder / "velocity.pt2"),
        "prelude": export(made.encoder, (torch.rand(4, 3, 4, 4), torch.ones(4) > 0, torch.rand(4)), folder / "pre.pt2"),
        "decoder": export(made.decoder, (torch.randn(4, 4),), folder / "decoder.pt2"),
    }


def imported(folder: Path, repository: Path, name: str = "latent") -> Latent:
    """Return the modules, and the checkpoint of their programs."""
    made = Latent()
    files = exported(made, folder)
    made.path = import_program(
        files["velocity"],
        repository,
        name,
        inputs=["x", "t", "tokens", "counts", "state"],
        conditions=CONDITIONS,
        declared=Declared(noise_at=0, scale=1.0, sign=1),
        decoder={"program": files["decoder"]},
        prelude=files["prelude"],
        prelude_outputs=["tokens", "counts"],
    ).path
    return made
