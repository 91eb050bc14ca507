"""Pictures from a flow in the latent space of a VAE: the decoder goes into the checkpoint as a program.

The network and the VAE's decoder are plain `nn.Module`s with small random weights; yours are trained. Both are exported
and imported as one model with pictures as its samples:

    PATHLINE_ALLOW_PROGRAMS=true python examples/latent_image.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

LATENT = (4, 4, 4)
SCALING = 0.18215
"""States are latents times this, as in Stable Diffusion; the decoder's program divides by it again."""


class Velocity(nn.Module):
    """The velocity of latents (rows, 4, 4, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.when = nn.Linear(1, 16)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the velocities (rows, 4, 4, 4)."""
        return self.last(nn.functional.silu(self.first(x) + self.when(t[:, None])[:, :, None, None]))


class Decoder(nn.Module):
    """The decoder of a VAE: states (rows, 4, 4, 4) become pictures (rows, 3, 16, 16) from -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(8, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the pictures."""
        return torch.tanh(self.layers(x / SCALING))


def export(module: nn.Module, arguments: tuple[Tensor, ...], file: Path) -> Path:
    """Export a program with a free number of rows."""
    rows = torch.export.Dim("rows", min=1, max=256)
    torch.export.save(torch.export.export(module, arguments, dynamic_shapes=({0: rows},) * len(arguments)), file)
    return file


def imported(repository: Path) -> tuple[Velocity, Decoder, Path]:
    """Export both modules and import them as the model `latent`; return them and the checkpoint."""
    torch.manual_seed(0)
    network, decoder = Velocity().eval().requires_grad_(False), Decoder().eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        model = import_program(
            export(network, (torch.randn(4, *LATENT), torch.rand(4)), Path(folder) / "network.pt2"),
            repository,
            "latent",
            declared=Declared(noise_at=0, scale=1.0, sign=1),
            decoder={"program": export(decoder, (torch.randn(4, *LATENT),), Path(folder) / "vae.pt2"), "clip": (-1, 1)},
        )
    return network, decoder, model.path


def main() -> int:
    """Import the model and print how to request pictures."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    print(f"saved: {imported(repository)[2]}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request a sheet of pictures:")
    print("  curl http://127.0.0.1:8000/v1/sample -H 'Content-Type: application/json' -H 'Accept: image/png' \\")
    print('      -o pictures.png -d \'{"model": "latent", "num_samples": 16, "solver": "euler-20"}\'')
    return 0


if __name__ == "__main__":
    sys.exit(main())
