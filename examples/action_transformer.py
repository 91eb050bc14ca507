"""A robot's action transformer: chunks of actions, given a camera image and the state of the joints.

The network is a plain `nn.Module` with tiny random weights; yours is trained. It is exported and imported with its
conditions by name; the service then answers requests for chunks of actions, one camera image each:

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

HORIZON, ACTIONS, STATE, WIDTH = 8, 4, 6, 32
INPUTS = ["x", "t", "image", "state"]
CONDITIONS: dict[str, Any] = {"image": {"dtype": "uint8", "scale": 1 / 255}}
"""What the program cannot say itself: requests give pixels from 0 to 255, and the network takes 0 to 1."""


class ActionTransformer(nn.Module):
    """The velocity of a chunk of actions (rows, HORIZON, ACTIONS), told an image (3, 16, 16) and a state (STATE,)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 16, WIDTH))
        self.feel, self.act = nn.Linear(STATE, WIDTH), nn.Linear(ACTIONS, WIDTH)
        self.when = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.places = nn.Parameter(torch.randn(HORIZON, WIDTH) / 10)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, ACTIONS)

    def forward(self, x: Tensor, t: Tensor, image: Tensor, state: Tensor) -> Tensor:
        """Return the velocities (rows, HORIZON, ACTIONS)."""
        told = torch.stack((self.see(image), self.feel(state), self.when(t[:, None])), dim=1)
        tokens = torch.cat((told, self.act(x) + self.places), dim=1)
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        return self.last(self.norm(tokens))[:, 3:]


def imported(repository: Path) -> tuple[ActionTransformer, Path]:
    """Export the network and import it as the model `actions`; return both."""
    torch.manual_seed(0)
    network = ActionTransformer().eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=1, max=64)
    given = (torch.randn(4, HORIZON, ACTIONS), torch.rand(4), torch.rand(4, 3, 16, 16), torch.randn(4, STATE))
    program = torch.export.export(network, given, dynamic_shapes=({0: rows},) * len(given))
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder) / "actions.pt2")
        ours = Declared(noise_at=0, scale=1.0, sign=1)
        found = import_program(
            *(Path(folder) / "actions.pt2", repository, "actions"),
            inputs=INPUTS,
            conditions=CONDITIONS,
            declared=ours,
        )
    return network, found.path


def main() -> int:
    """Import the model and say how to ask for actions."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    _, path = imported(repository)
    print(f"saved: {path}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Ask for a chunk of actions:")
    print('  client.sample("actions", 1, solver="euler-10", conditions={"image": frame, "state": joints})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
