"""A robot's action expert on a vision-language model: its keys and values as the prelude, and real-time chunking.

The prefix (image and instruction) is encoded once for a request, to the keys and values that every layer of the expert
attends to. While a chunk is computed the robot carries on with the last one: a request gives those actions as `prefix`,
and how many of them will be done as `delay`. The expert was trained for that (training-time real-time chunking; Black
et al. 2025): these actions are given clean, at their own time of 1, and are not moved.

    PATHLINE_ALLOW_PROGRAMS=true python examples/robot_chunks.py
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

HORIZON, ACTIONS, WIDTH, LAYERS, PATCHES = 16, 4, 32, 2, 16
INPUTS = ["x", "t", "keys", "values", "prefix", "delay"]
CONDITIONS: dict[str, Any] = {
    "image": {"dtype": "uint8", "scale": 1 / 255},
    "prefix": {"default": 0.0},
    "delay": {"dtype": "int64", "default": 0},
}
"""Facts that are not in the program: without `prefix` and `delay` a chunk is new."""


class Prefix(nn.Module):
    """The encoder: keys and values (rows, LAYERS, PATCHES, WIDTH) of an image (3, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.cache = nn.Conv2d(3, WIDTH, 4, stride=4), nn.Linear(WIDTH, 2 * LAYERS * WIDTH)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of all layers."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        cache = self.cache(tokens).unflatten(2, (2, LAYERS, WIDTH)).permute(2, 0, 3, 1, 4)
        return cache[0], cache[1]


class Expert(nn.Module):
    """The velocity of a chunk of actions (rows, HORIZON, ACTIONS), which attends to the prefix and to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(ACTIONS, WIDTH), nn.Linear(WIDTH, ACTIONS)
        self.places = nn.Parameter(torch.randn(HORIZON, WIDTH) / 10)
        self.when = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.asks = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.thinks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x: Tensor, t: Tensor, keys: Tensor, values: Tensor, prefix: Tensor, delay: Tensor) -> Tensor:
        """Return the velocities; those of the first `delay` (rows,) actions, which are in `prefix`, are zero."""
        done = (torch.arange(HORIZON) < delay[:, None])[..., None]
        at = torch.where(done, torch.ones_like(x[..., :1]), t[:, None, None])
        tokens = self.enter(torch.where(done, prefix, x)) + self.places + self.when(at)
        for layer, (ask, think) in enumerate(zip(self.asks, self.thinks, strict=True)):
            query, key, value = ask(tokens).chunk(3, dim=-1)
            key, value = torch.cat((keys[:, layer], key), 1), torch.cat((values[:, layer], value), 1)
            tokens = tokens + nn.functional.scaled_dot_product_attention(query, key, value)
            tokens = tokens + think(tokens)
        return torch.where(done, torch.zeros_like(x), self.leave(tokens))


def exported(module: nn.Module, arguments: tuple[Tensor, ...], file: Path) -> Path:
    """Export a program with a free number of rows."""
    rows = torch.export.Dim("rows", min=1, max=64)
    torch.export.save(torch.export.export(module, arguments, dynamic_shapes=({0: rows},) * len(arguments)), file)
    return file


def imported(repository: Path) -> tuple[Prefix, Expert]:
    """Export both networks and import them as the model `robot`; return them."""
    torch.manual_seed(0)
    prefix, expert = Prefix().eval().requires_grad_(False), Expert().eval().requires_grad_(False)
    x, cache = torch.randn(4, HORIZON, ACTIONS), torch.randn(4, LAYERS, PATCHES, WIDTH)
    arguments = (x, torch.rand(4), cache, cache + 1, x + 1, torch.arange(4))
    with tempfile.TemporaryDirectory() as folder:
        encoder = exported(prefix, (torch.rand(4, 3, 16, 16),), Path(folder) / "prefix.pt2")
        import_program(
            exported(expert, arguments, Path(folder) / "expert.pt2"),
            repository,
            "robot",
            inputs=INPUTS,
            conditions=CONDITIONS,
            declared=Declared(noise_at=0, scale=1.0, sign=1),
            prelude=encoder,
            prelude_inputs=["image"],
            prelude_outputs=["keys", "values"],
        )
    return prefix, expert


def main() -> int:
    """Import the model and print how to request chunks."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    imported(repository)
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request a chunk, then one whose first 3 actions are those in progress (their rows of a chunk are ignored):")
    print('  client.sample("robot", 1, solver="euler-10", conditions={"image": frame})')
    print('  client.sample("robot", 1, solver="euler-10", conditions={"image": frame, "prefix": chunk, "delay": 3})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
