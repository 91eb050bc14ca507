"""A text-to-image transformer of diffusers, served with text and pooled conditions, a negative prompt and a free size.

`SD3Transformer2DModel` is the network of Stable Diffusion 3. Here it is tiny and has random weights; yours comes from
its checkpoint. Its text encoders and the decoder of its latents stay outside: requests contain the encoders' outputs.

    pip install --no-deps diffusers huggingface_hub importlib_metadata zipp regex
    PATHLINE_ALLOW_PROGRAMS=true python examples/text_to_image.py
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

TEXT, POOLED, MAX_TOKENS = 32, 16, 77
INPUTS = ["x", "t", "text", "pooled"]
CONDITIONS: dict[str, Any] = {"text": {"shape": ["L", TEXT], "max": {"L": MAX_TOKENS}}}
"""Facts that are not in the program. There is no null: guidance needs the negative prompt, as in diffusers."""

SCHEDULER: dict[str, Any] = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
"""The `scheduler_config.json` of Stable Diffusion 3."""


class Velocity(nn.Module):
    """The call of the transformer as f(x, t, text, pooled)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, text: Tensor, pooled: Tensor) -> Tensor:
        """Return noise minus data, (rows, 4, H, W), at t from 0 to 1000."""
        conditions = {"encoder_hidden_states": text, "pooled_projections": pooled, "timestep": t}
        return self.network(hidden_states=x, **conditions, return_dict=False)[0]


def transformer() -> nn.Module:
    """The network, tiny, with random weights."""
    from diffusers.models.transformers.transformer_sd3 import (  # type: ignore[import-not-found]
        SD3Transformer2DModel,
    )

    torch.manual_seed(0)
    size = {"sample_size": 16, "patch_size": 2, "in_channels": 4, "out_channels": 4, "pos_embed_max_size": 24}
    heads = {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32}
    conditions = {"joint_attention_dim": TEXT, "pooled_projection_dim": POOLED}
    return Velocity(SD3Transformer2DModel(**size, **heads, **conditions)).eval().requires_grad_(False)


def imported(repository: Path) -> tuple[nn.Module, Path]:
    """Export the network with a free height, width and number of tokens, import it as `pictures`; return both."""
    network = transformer()
    rows, tokens = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("tokens", min=1, max=MAX_TOKENS)
    high, wide = (2 * torch.export.Dim(name, min=2, max=24) for name in ("half_height", "half_width"))
    arguments = (torch.randn(4, 4, 16, 12), torch.rand(4) * 1000, torch.randn(4, 5, TEXT), torch.randn(4, POOLED))
    shapes = ({0: rows, 2: high, 3: wide}, {0: rows}, {0: rows, 1: tokens}, {0: rows})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pictures.pt2"
        torch.export.save(torch.export.export(network, arguments, dynamic_shapes=shapes), file)
        declared = Declared().scheduled(SCHEDULER, "euler-8")
        more: dict[str, Any] = {"inputs": INPUTS, "conditions": CONDITIONS, "declared": declared}
        model = import_program(file, repository, "pictures", (4, "H", "W"), **more)
    return network, model.path


def main() -> int:
    """Import the model and print how to request pictures."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    _, path = imported(repository)
    print(f"saved: {path}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request a picture of any even size, with the text encoders' outputs for the prompt and the negative prompt:")
    print('  client.sample("pictures", 1, shape={"H": 24, "W": 16}, guidance=4.5,')
    print('                conditions={"text": text, "pooled": pooled}, negative={"text": other, "pooled": others})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
