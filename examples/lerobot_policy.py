"""A robot policy of lerobot, served with camera images and the state of the joints as conditions.

`DiffusionModel` is the network of lerobot's Diffusion Policy (Chi et al. 2023): a ResNet encodes the images of the last
two observations, and a UNet over time denoises a chunk of actions. Here it is small and has random weights; yours comes
from `DiffusionPolicy.from_pretrained(...).diffusion`. The encoder becomes the prelude, which runs once per request, and
requests that name no solver get the DDIM steps of the policy's own scheduler.

lerobot 0.4.4 requires torch below 2.11, and the torchvision of the package index needs CUDA's libraries, so both are
installed without what they ask for, in an environment of their own (tests/system/with_lerobot):

    PATHLINE_ALLOW_PROGRAMS=true python examples/lerobot_policy.py
"""

from __future__ import annotations

import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

HORIZON, ACTIONS, STATE, SEEN, SIDE = 16, 2, 3, 2, 48
"""Actions of a chunk, numbers of an action and of a state, observations of a request, and pixels of a side."""

TRAINED, STEPS = 100, 10
"""Steps of the noise in training, and in sampling."""


class Encoder(nn.Module):
    """Images and states of a request -> the one vector that its UNet is conditioned on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.rgb_encoder

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        """Return the vectors (rows, width), as `DiffusionModel._prepare_global_conditioning` does for one camera.

        Args:
            image: (rows, SEEN, 3, SIDE, SIDE) from 0 to 1.
            state: (rows, SEEN, STATE).
        """
        seen = self.encoder(image.flatten(0, 1)).reshape(state.shape[0], SEEN, -1)
        return torch.cat((state, seen), dim=-1).flatten(1)


class Noise(nn.Module):
    """The call of the UNet as f(x, t, seen)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.unet = model.unet

    def forward(self, x: Tensor, t: Tensor, seen: Tensor) -> Tensor:
        """Return the noise in x (rows, HORIZON, ACTIONS) at steps t (rows,)."""
        return self.unet(x, t, global_cond=seen)


def policy() -> Any:
    """The network of the policy, small, with random weights."""
    name = "torchvision._meta_registrations"  # describes compiled operations, which a CPU build of torch cannot load
    sys.modules.setdefault(name, types.ModuleType(name))
    from lerobot.configs.types import FeatureType, PolicyFeature  # type: ignore[import-not-found]
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig  # type: ignore[import-not-found]
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionModel  # type: ignore[import-not-found]

    inputs = {
        "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(STATE,)),
        "observation.images.front": PolicyFeature(type=FeatureType.VISUAL, shape=(3, SIDE, SIDE)),
    }
    config = DiffusionConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(ACTIONS,))},
        n_obs_steps=SEEN,
        horizon=HORIZON,
        crop_shape=None,
        down_dims=(16, 32),
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        noise_scheduler_type="DDIM",
        num_train_timesteps=TRAINED,
        num_inference_steps=STEPS,
        clip_sample=False,  # its scheduler would clip the actions at every step, which is not an ODE
    )
    torch.manual_seed(0)
    return DiffusionModel(config).eval().requires_grad_(False)


def declared() -> Declared:
    """What the UNet predicts and when: the noise, with diffusers' `squaredcos_cap_v2` betas, in DDIM's steps."""
    scheduler = {"_class_name": "DDIMScheduler", "beta_schedule": "squaredcos_cap_v2", "num_train_timesteps": TRAINED}
    return Declared().scheduled(scheduler, f"euler-{STEPS}")


def imported(repository: Path) -> tuple[Any, Path]:
    """Export the encoder and the UNet and import them as the model `policy`; return the network and the checkpoint."""
    model = policy()
    encoder, noise = Encoder(model).eval(), Noise(model).eval()
    observation = (torch.rand(4, SEEN, 3, SIDE, SIDE), torch.randn(4, SEEN, STATE))
    rows = torch.export.Dim("rows", min=1, max=64)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.pt2" for name in ("encoder", "noise")]
        arguments = (torch.randn(4, HORIZON, ACTIONS), torch.rand(4) * 90, encoder(*observation))
        for module, inputs, file in zip((encoder, noise), (observation, arguments), files, strict=True):
            program = torch.export.export(module, inputs, dynamic_shapes=({0: rows},) * len(inputs))
            torch.export.save(program.run_decompositions(), file)  # without ResNet's ReLU in place
        checkpoint = import_program(
            files[1],
            repository,
            "policy",
            inputs=["x", "t", "seen"],
            conditions={"image": {"dtype": "uint8", "scale": 1 / 255}},
            declared=declared(),
            prelude=files[0],
            prelude_inputs=["image", "state"],
            prelude_outputs=["seen"],
        )
    return model, checkpoint.path


def main() -> int:
    """Import the model and print how to request actions."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    _, path = imported(repository)
    print(f"saved: {path}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Request a chunk of actions; frames has the shape (2, 3, 48, 48) and joints (2, 3):")
    print('  client.sample("policy", 1, conditions={"image": frames, "state": joints})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
