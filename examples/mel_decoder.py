"""A speech decoder of free length: mel spectrograms (80, T) from the output of a text encoder for each frame.

The network is built like Matcha-TTS's (a small UNet over frames with attention, with `mu` of the same length and a mask
of valid frames as inputs), with random weights; yours is trained. Its export has a free number of frames, a multiple of
4, so each request chooses its own. Its training data are spectrograms normalised by the mean and standard deviation of
each band; both are imported as its decoder, so samples are spectrograms again:

    PATHLINE_ALLOW_PROGRAMS=true python examples/mel_decoder.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

MELS, WIDTH, MAX_FRAMES = 80, 32, 2000
INPUTS = ["x", "t", "mu", "mask"]
CONDITIONS: dict[str, Any] = {"mu": {"null": "zeros"}, "mask": {"null": True}}
"""Facts that are not in the program: without `mu` there is no text, and without a mask all frames are valid."""

MEAN, DEVIATION = np.linspace(-4.0, -8.0, MELS, dtype=np.float32), np.linspace(2.5, 1.5, MELS, dtype=np.float32)
"""Mean and deviation of the training data in each band (80,): a state is (spectrogram - mean) / deviation."""


class Block(nn.Module):
    """A residual block over frames, conditioned on time; invalid frames stay zero."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(inside, outside, 3, padding=1), nn.Conv1d(outside, outside, 3, padding=1)
        self.norm, self.when = nn.GroupNorm(8, outside), nn.Linear(WIDTH, outside)
        self.around = nn.Conv1d(inside, outside, 1)

    def forward(self, x: Tensor, mask: Tensor, when: Tensor) -> Tensor:
        """Return the frames (rows, outside, T)."""
        h = nn.functional.mish(self.norm(self.first(x * mask))) + self.when(when)[..., None]
        return (self.around(x) + self.second(h * mask)) * mask


class Attention(nn.Module):
    """Attention between valid frames."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the frames (rows, WIDTH, T)."""
        q, k, v = self.qkv(self.norm(x.transpose(1, 2))).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5 + (1.0 - mask) * -1e4
        return x + self.out(scores.softmax(-1) @ v).transpose(1, 2) * mask


class MelDecoder(nn.Module):
    """The velocity of a mel spectrogram (rows, 80, T) from noise at t = 0 to speech at t = 1."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp(torch.linspace(0.0, 7.0, WIDTH // 2)))
        self.when = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.enter, self.leave = Block(2 * MELS, WIDTH), Block(2 * WIDTH, WIDTH)
        self.down = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1) for _ in range(2))
        self.up = nn.ModuleList(nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1) for _ in range(2))
        self.middle, self.attention, self.last = Block(WIDTH, WIDTH), Attention(), nn.Conv1d(WIDTH, MELS, 1)

    def forward(self, x: Tensor, t: Tensor, mu: Tensor, mask: Tensor) -> Tensor:
        """Return the velocities (rows, 80, T).

        Args:
            x: states (rows, 80, T).
            t: times (rows,).
            mu: output of the text encoder for each frame, (rows, 80, T).
            mask: which frames are valid, (rows, T) bool.
        """
        keep = mask.to(x.dtype)[:, None]
        angles = t[:, None] * self.frequencies
        when = self.when(torch.cat((angles.sin(), angles.cos()), 1))
        h = self.enter(torch.cat((x, mu), 1), keep, when)
        low, few = h, keep
        for down in self.down:
            low, few = down(low * few), few[..., ::2]
        low = self.attention(self.middle(low, few, when), few)
        for up in self.up:
            low = up(low)
        return self.last(self.leave(torch.cat((h, low), 1), keep, when)) * keep


def exported(network: MelDecoder, file: Path) -> None:
    """Export the network with a free number of rows, and of frames in multiples of 4."""
    rows, frames = torch.export.Dim("rows", min=1, max=256), 4 * torch.export.Dim("quarter", max=MAX_FRAMES // 4)
    arguments = (torch.randn(4, MELS, 40), torch.rand(4), torch.randn(4, MELS, 40), torch.ones(4, 40, dtype=torch.bool))
    shapes = ({0: rows, 2: frames}, {0: rows}, {0: rows, 2: frames}, {0: rows, 1: frames})
    torch.export.save(torch.export.export(network, arguments, dynamic_shapes=shapes), file)


def imported(repository: Path) -> tuple[MelDecoder, Path]:
    """Export the network and import it as the model `mel`; return both."""
    torch.manual_seed(0)
    network = MelDecoder().eval().requires_grad_(False)
    ours = Declared(noise_at=0, scale=1.0, sign=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mel.pt2"
        exported(network, file)
        more: dict[str, Any] = {"inputs": INPUTS, "conditions": CONDITIONS, "axes": {"T": {"min": 8}}, "declared": ours}
        more["decoder"] = {"mean": MEAN, "scale": DEVIATION}
        model = import_program(file, repository, "mel", (MELS, "T"), **more)
    return network, model.path


def main() -> int:
    """Import the model and print how to request speech."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    _, path = imported(repository)
    print(f"saved: {path}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request 344 frames, or as many as `mu` has:")
    print("  curl -s http://127.0.0.1:8000/v1/sample -H 'Content-Type: application/json' \\")
    print('      -d \'{"model": "mel", "num_samples": 1, "seed": 0, "solver": "euler-10", "shape": {"T": 344}}\'')
    print('  client.sample("mel", 1, solver="euler-10", conditions={"mu": mu})  # mu: (80, T)')
    return 0


if __name__ == "__main__":
    sys.exit(main())
