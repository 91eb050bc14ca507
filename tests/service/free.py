"""Small imported networks with free axes, for tests: a sequence with a condition of its length, and a picture."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

OURS = Declared(0, 1.0, 1)
AXES = {"T": {"min": 4, "max": 40}}


class Mel(nn.Module):
    """A velocity of 3 channels and T frames, an even number, conditioned on as many frames."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(6, 8, 3, padding=1)
        self.down, self.up = nn.Conv1d(8, 8, 3, stride=2, padding=1), nn.ConvTranspose1d(8, 8, 4, stride=2, padding=1)
        self.last = nn.Conv1d(16, 3, 1)

    def forward(self, x: Tensor, t: Tensor, mu: Tensor) -> Tensor:
        h = torch.tanh(self.first(torch.cat((x, mu), 1)) + t[:, None, None])
        return self.last(torch.cat((h, torch.tanh(self.up(self.down(h)))), 1)) - x


class Picture(nn.Module):
    """A velocity of one channel and any height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + t[:, None, None, None]))


class Vocoder(nn.Module):
    """A decoder to sound: four numbers for each frame, without the last three."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 3, padding=1), nn.ConvTranspose1d(8, 1, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(torch.tanh(self.first(x))))[:, :, :-3]


class Enlarge(nn.Module):
    """A decoder to pictures of three channels, twice as high and three times as wide as states."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.ConvTranspose2d(1, 3, (2, 3), stride=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.only(x))


def vocoder(folder: Path) -> tuple[Vocoder, Path]:
    """Return the decoder to sound as a program for any number of frames, and its module."""
    torch.manual_seed(1)
    network = Vocoder().eval().requires_grad_(False)
    rows, frames = torch.export.Dim("rows", max=1024), torch.export.Dim("frames", min=2, max=64)
    return network, exported(network, (torch.randn(4, 3, 8),), ({0: rows, 2: frames},), folder / "vocoder.pt2")


def enlarge(folder: Path) -> tuple[Enlarge, Path]:
    """Return the decoder to larger pictures as a program, and its module."""
    torch.manual_seed(1)
    network = Enlarge().eval().requires_grad_(False)
    rows = torch.export.Dim("rows", max=1024)
    high, wide = (torch.export.Dim(each, min=4, max=64) for each in ("high", "wide"))
    return network, exported(
        network, (torch.randn(4, 1, 8, 10),), ({0: rows, 2: high, 3: wide},), folder / "enlarge.pt2"
    )


def exported(network: nn.Module, given: tuple[Tensor, ...], shapes: tuple[dict[int, Any], ...], path: Path) -> Path:
    """Export a network and return the program's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(torch.export.export(network.eval(), given, dynamic_shapes=shapes), path)
    return path


def mel(folder: Path, repository: Path, name: str = "mel", decoder: dict[str, Any] | None = None) -> tuple[Mel, Path]:
    """Return the sequence's network, and its checkpoint with a decoder."""
    torch.manual_seed(0)
    network = Mel().eval().requires_grad_(False)
    rows, frames = torch.export.Dim("rows", max=1024), 2 * torch.export.Dim("half", max=100)
    given = (torch.randn(4, 3, 8), torch.rand(4), torch.randn(4, 3, 8))
    path = exported(network, given, ({0: rows, 2: frames}, {0: rows}, {0: rows, 2: frames}), folder / "mel.pt2")
    nulls = {"mu": {"null": "zeros"}}
    inputs = ["x", "t", "mu"]
    more: dict[str, Any] = {"inputs": inputs, "conditions": nulls, "axes": AXES, "declared": OURS}
    return network, import_program(path, repository, name, (3, "T"), decoder=decoder, **more).path


def picture(
    folder: Path, repository: Path, name: str = "picture", decoder: dict[str, Any] | None = None
) -> tuple[Picture, Path]:
    """Return the picture's network, and its checkpoint with a decoder."""
    torch.manual_seed(0)
    network = Picture().eval().requires_grad_(False)
    rows = torch.export.Dim("rows", max=1024)
    high, wide = (torch.export.Dim(each, min=4, max=64) for each in ("high", "wide"))
    given = (torch.randn(4, 1, 8, 10), torch.rand(4))
    path = exported(network, given, ({0: rows, 2: high, 3: wide}, {0: rows}), folder / "picture.pt2")
    return network, import_program(path, repository, name, declared=OURS, decoder=decoder or {"clip": (-1.0, 1.0)}).path
