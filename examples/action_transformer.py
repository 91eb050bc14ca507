"""A robot's action transformer: chunks of actions, given a camera image and the state of the joints.

The networks are plain `nn.Module`s with tiny random weights; yours are trained. The vision encoder is the prelude: it
processes the image of a request once, and every step of the transformer uses the result. Both are exported and imported
as one model; the service then answers requests for chunks of actions, one camera image each:

    PATHLINE_ALLOW_PROGRAMS=true python examples/action_transformer.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

HORIZON, ACTIONS, STATE, WIDTH, PATCHES = 8, 4, 6, 32, 4
INPUTS = ["x", "t", "seen", "state"]
CONDITIONS: dict[str, Any] = {"image": {"dtype": "uint8", "scale": 1 / 255}}
"""Facts that are not in the program: requests give pixels from 0 to 255, and the encoder takes 0 to 1."""


class VisionEncoder(nn.Module):
    """Tokens (rows, PATCHES, WIDTH) of an image (3, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, image: Tensor) -> Tensor:
        """Return the tokens."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        return tokens + self.layers(tokens)


class ActionTransformer(nn.Module):
    """The velocity of a chunk of actions (rows, HORIZON, ACTIONS), given image tokens and a state (STATE,)."""

    def __init__(self) -> None:
        super().__init__()
        self.feel, self.act = nn.Linear(STATE, WIDTH), nn.Linear(ACTIONS, WIDTH)
        self.when = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.places = nn.Parameter(torch.randn(HORIZON, WIDTH) / 10)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, ACTIONS)

    def forward(self, x: Tensor, t: Tensor, seen: Tensor, state: Tensor) -> Tensor:
        """Return the velocities (rows, HORIZON, ACTIONS)."""
        context = torch.stack((self.feel(state), self.when(t[:, None])), dim=1)
        tokens = torch.cat((seen, context, self.act(x) + self.places), dim=1)
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        return self.last(self.norm(tokens))[:, -HORIZON:]


def export(module: nn.Module, arguments: tuple[Tensor, ...], file: Path) -> Path:
    """Export a program with a free number of rows."""
    rows = torch.export.Dim("rows", min=1, max=64)
    torch.export.save(torch.export.export(module, arguments, dynamic_shapes=({0: rows},) * len(arguments)), file)
    return file


def imported(repository: Path) -> tuple[VisionEncoder, ActionTransformer, Path]:
    """Export both networks and import them as the model `actions`; return them and the checkpoint."""
    torch.manual_seed(0)
    encoder, network = VisionEncoder().eval().requires_grad_(False), ActionTransformer().eval().requires_grad_(False)
    x, seen = torch.randn(4, HORIZON, ACTIONS), torch.randn(4, PATCHES, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        model = import_program(
            export(network, (x, torch.rand(4), seen, torch.randn(4, STATE)), Path(folder) / "actions.pt2"),
            repository,
            "actions",
            inputs=INPUTS,
            conditions=CONDITIONS,
            declared=Declared(noise_at=0, scale=1.0, sign=1),
            prelude=export(encoder, (torch.rand(4, 3, 16, 16),), Path(folder) / "vision.pt2"),
            prelude_outputs=["seen"],
        )
    return encoder, network, model.path


def main() -> int:
    """Import the model and print how to request actions."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    *_, path = imported(repository)
    print(f"saved: {path}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request a chunk of actions:")
    print('  client.sample("actions", 1, solver="euler-10", conditions={"image": frame, "state": joints})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
