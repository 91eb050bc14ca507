"""A small imported network with named conditions, for tests."""

from pathlib import Path

import torch
from torch import Tensor, nn

from models.importing.weights import import_program


class Named(nn.Module):
    """A velocity of 3 numbers conditioned on a text of free length, a mask, a picture, a class and a strength."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image, self.label = nn.Linear(4, 8), nn.Linear(12, 8), nn.Embedding(6, 8)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(
        self, x: Tensor, t: Tensor, text: Tensor, mask: Tensor, image: Tensor, label: Tensor, strength: Tensor
    ) -> Tensor:
        weights = mask.to(x.dtype)[..., None]
        pooled = (self.text(text) * weights).sum(1) / (weights.sum(1) + 1.0)
        h = self.first(torch.cat((x, t[:, None]), 1)) + pooled + self.image(image.flatten(1)) + self.label(label)
        return self.last(torch.tanh(h)) * strength[:, None]


DECLARED = {
    "text": {"null": "zeros", "shape": ["L", 4], "max": {"L": 6}},
    "mask": {"null": False, "shape": ["L"], "max": {"L": 6}},
    "image": {"dtype": "uint8", "scale": 1 / 255, "null": "stored"},
    "label": {"classes": 5, "null": 5, "names": ["a", "b", "c", "d", "e"]},
    "strength": {"default": 3.5},
}


def exported(folder: Path) -> tuple[Named, Path]:
    """Return the network, and its program."""
    torch.manual_seed(0)
    network = Named().eval().requires_grad_(False)
    rows, length = torch.export.Dim("rows", max=1024), torch.export.Dim("length", max=64)
    given = (
        *(torch.randn(4, 3), torch.rand(4), torch.randn(4, 5, 4), torch.ones(4, 5, dtype=torch.bool)),
        *(torch.rand(4, 3, 2, 2), torch.arange(4), torch.ones(4)),
    )
    both, one = {0: rows, 1: length}, {0: rows}
    program = torch.export.export(network, given, dynamic_shapes=(one, one, both, both, one, one, one))
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / "named.pt2")
    return network, folder / "named.pt2"


def imported(folder: Path, repository: Path, name: str = "named") -> tuple[Named, Path]:
    """Return the network, and the checkpoint of its program."""
    network, path = exported(folder)
    null = {"image": torch.full((3, 2, 2), 128, dtype=torch.uint8)}
    inputs = ["x", "t", "text", "mask", "image", "label", "strength"]
    return network, import_program(path, repository, name, inputs=inputs, conditions=DECLARED, nulls=null).path
