"""Networks of diffusers, in small configs with random weights, sampled by its schedulers.

Without the package, a case raises `ModuleNotFoundError`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program
from studies.networks.case import Case, Tensors, code_lines, export, in_dtype, normal, seeded, size_of
from tests.examples.support import load_example

DDIM = {"_class_name": "DDIMScheduler", "clip_sample": False}


def sd3(repository: Path) -> Case:
    """Return diffusers' SD3 transformer with texts of eight lengths and pictures of eight sizes."""
    diffusers, module = importlib.import_module("diffusers"), load_example("text_to_image")
    wide = {"num_layers": 4, "attention_head_dim": 32, "num_attention_heads": 4, "caption_projection_dim": 128}
    pixels = {"sample_size": 32, "patch_size": 2, "in_channels": 4, "out_channels": 4, "pos_embed_max_size": 48}
    text = {"joint_attention_dim": module.TEXT, "pooled_projection_dim": module.POOLED}
    transformer = lambda: diffusers.SD3Transformer2DModel(**wide, **pixels, **text)  # noqa: E731
    vars(module)["transformer"] = lambda: module.Velocity(seeded(transformer, 0.05)).eval()
    network, _ = module.imported(repository)
    of, steps = in_dtype(network), 8

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
        return flow_match(scheduler, steps, lambda x, t: of(dtype)(x, t, conditions["text"], conditions["pooled"]), x)

    return Case(
        *("diffusers", "pictures", size_of(network), code_lines(module.__file__, "Velocity")),
        *("FlowMatchEulerDiscreteScheduler, 8 steps", plain),
        event=lambda sizes: (4, sizes["H"], sizes["W"]),
        conditions=lambda k, sizes: {"text": normal(k, 12 + k, module.TEXT), "pooled": normal(k + 1, module.POOLED)},
        shapes=[{"H": 32 - 2 * k, "W": 24 + 2 * k} for k in range(8)],
        free=(1, 2),
    )


class FluxVelocity(nn.Module):
    """The call of Flux's transformer as f(x, t, text, pooled, guidance): packing and ids are inside."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, text: Tensor, pooled: Tensor, guidance: Tensor) -> Tensor:
        """Return noise minus data (rows, C, H, W), at t from 0 to 1."""
        rows, channels, high, wide = x.shape
        packed = x.view(rows, channels, high // 2, 2, wide // 2, 2).permute(0, 2, 4, 1, 3, 5)
        down, across = torch.arange(high // 2), torch.arange(wide // 2)
        grid = torch.stack(torch.meshgrid(down, across, indexing="ij"), -1).flatten(0, 1)
        v = self.network(
            packed.flatten(3).flatten(1, 2),
            text,
            pooled,
            t,
            torch.nn.functional.pad(grid, (1, 0)).to(x.dtype),
            torch.zeros(text.shape[1], 3, dtype=x.dtype),
            guidance,
            return_dict=False,
        )[0]
        return v.view(rows, high // 2, wide // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(x.shape)


def flux(repository: Path) -> Case:
    """Return diffusers' Flux transformer with texts of eight lengths."""
    diffusers = importlib.import_module("diffusers")
    wide = {"num_layers": 2, "num_single_layers": 4, "attention_head_dim": 32, "num_attention_heads": 4}
    inputs = {"joint_attention_dim": 64, "pooled_projection_dim": 32, "guidance_embeds": True}
    transformer = lambda: diffusers.FluxTransformer2DModel(  # noqa: E731
        patch_size=1, in_channels=16, axes_dims_rope=(8, 12, 12), **wide, **inputs
    )
    network = FluxVelocity(seeded(transformer, 0.05)).eval()
    tokens = {1: torch.export.Dim("tokens", min=2, max=256)}
    sides = {2: 2 * torch.export.Dim("half_h", min=2, max=32), 3: 2 * torch.export.Dim("half_w", min=2, max=32)}
    x, text, pooled = torch.randn(4, 4, 16, 12), torch.randn(4, 6, 64), torch.randn(4, 32)
    arguments = (x, torch.rand(4), text, pooled, torch.full((4,), 3.5))
    file = export(network, arguments, repository.parent / "flux.pt2", [sides, {}, tokens, {}, {}])
    scheduler = {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True}
    import_program(
        *(file, repository, "flux", (4, "H", "W")),
        inputs=["x", "t", "text", "pooled", "guidance"],
        conditions={"guidance": {"default": 3.5}, "text": {"shape": ["L", 64], "max": {"L": 256}}},
        declared=Declared(scale=1.0).scheduled(scheduler, "euler-8", 2),
    )
    of, steps = in_dtype(network), 8

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        count = x.shape[2] * x.shape[3] // 4  # as FluxPipeline does
        mu = (count - 256) * (1.15 - 0.5) / (4096 - 256) + 0.5
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        guidance = torch.full((1,), 3.5, dtype=dtype)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            return of(dtype)(x, t / 1000, conditions["text"], conditions["pooled"], guidance)

        return flow_match(scheduler, steps, velocity, x, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)

    return Case(
        *("diffusers", "flux", size_of(network), code_lines(__file__, "FluxVelocity")),
        *("FlowMatchEulerDiscreteScheduler with FluxPipeline's shift, 8 steps", plain),
        event=lambda sizes: (4, sizes["H"], sizes["W"]),
        conditions=lambda k, sizes: {"text": normal(k, 32 + 8 * k, 64), "pooled": normal(k + 1, 32)},
        shapes=[{"H": 24, "W": 24}],
        free=(1, 2),
    )


def flow_match(
    scheduler: Any, steps: int, velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, **set_by: Any
) -> Tensor:
    """Sample with a flow-matching scheduler of diffusers; in float64 by its sigmas, as its class rounds to float32."""
    scheduler.set_timesteps(**({"num_inference_steps": steps} | set_by))
    if x.dtype == torch.float64:
        sigmas = scheduler.sigmas.double()
        for now, after, t in zip(sigmas[:-1], sigmas[1:], scheduler.timesteps.double(), strict=True):
            x = x + (after - now) * velocity(x, t.expand(len(x)))
        return x
    for t in scheduler.timesteps:
        x = scheduler.step(velocity(x, t.expand(len(x))), t, x, return_dict=False)[0]
    return x


class DiTNoise(nn.Module):
    """The call of DiT as f(x, t, label): the predicted noise, without the predicted variances."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        """Return the predicted noise (rows, 4, 16, 16)."""
        return self.network(x, timestep=t, class_labels=label, return_dict=False)[0][:, :4]


def dit(repository: Path) -> Case:
    """Return diffusers' DiT with class labels, sampled by DDIM."""
    diffusers = importlib.import_module("diffusers")
    wide = {"num_layers": 4, "attention_head_dim": 32, "num_attention_heads": 4, "num_embeds_ada_norm": 10}
    transformer = lambda: diffusers.DiTTransformer2DModel(sample_size=16, in_channels=4, out_channels=8, **wide)  # noqa: E731
    network = DiTNoise(seeded(transformer, 0.05)).eval()
    arguments = (torch.randn(4, 4, 16, 16), torch.rand(4) * 1000, torch.arange(4))
    file = export(network, arguments, repository.parent / "dit.pt2")
    import_program(
        *(file, repository, "dit", (4, 16, 16)),
        inputs=["x", "t", "label"],
        conditions={"label": {"classes": 10}},
        declared=Declared().scheduled(DDIM, "euler-10"),
    )
    of = in_dtype(network)

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        scheduler = diffusers.DDIMScheduler(clip_sample=False)
        return ddim(scheduler, 10, lambda x, t: of(dtype)(x, t.to(dtype), conditions["label"]), x)

    return Case(
        *("diffusers", "dit", size_of(network), code_lines(__file__, "DiTNoise"), "DDIMScheduler, 10 steps", plain),
        event=lambda sizes: (4, 16, 16),
        conditions=lambda k, sizes: {"label": np.array(k)},
    )


class Only(nn.Module):
    """The call of a network of diffusers as f(x, t)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return its only result, shaped like x."""
        return self.network(x, t, return_dict=False)[0]


def unet2d(repository: Path) -> Case:
    """Return diffusers' UNet2DModel, which predicts noise, sampled by DDIM."""
    diffusers = importlib.import_module("diffusers")
    network = Only(seeded(lambda: _unet2d(diffusers, 3), 0.05)).eval()
    file = export(network, (torch.randn(4, 3, 32, 32), torch.rand(4) * 1000), repository.parent / "unet2d.pt2")
    declared = Declared().scheduled(DDIM, "euler-10")
    import_program(file, repository, "unet2d", (3, 32, 32), declared=declared)
    of = in_dtype(network)

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        return ddim(diffusers.DDIMScheduler(clip_sample=False), 10, lambda x, t: of(dtype)(x, t), x)

    return Case(
        *("diffusers", "unet2d", size_of(network), code_lines(__file__, "Only"), "DDIMScheduler, 10 steps", plain),
        event=lambda sizes: (3, 32, 32),
    )


def _unet2d(diffusers: Any, channels: int) -> nn.Module:
    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return diffusers.UNet2DModel(
        sample_size=32, in_channels=channels, out_channels=channels, block_out_channels=(32, 64), **blocks
    )


def ddim(scheduler: Any, steps: int, eps: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Sample with diffusers' DDIM scheduler; in float64 by its alphas, as they are float32 in its class."""
    scheduler.set_timesteps(steps)
    alphas = scheduler.alphas_cumprod.double()
    for t in scheduler.timesteps:
        e = eps(x, t.expand(len(x)))
        if x.dtype == torch.float32:
            x = scheduler.step(e, t, x, return_dict=False)[0]
            continue
        before = int(t) - 1000 // steps
        a, b = alphas[t], alphas[before] if before >= 0 else scheduler.final_alpha_cumprod.double()
        x = (b / a).sqrt() * (x - (1 - a).sqrt() * e) + (1 - b).sqrt() * e
    return x


class Preconditioned(nn.Module):
    """The denoiser D(x, sigma) of Karras et al. (2022) around a network F, with data of deviation 0.5."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the denoised x (their table 1)."""
        s, c = sigma[:, None, None, None], 0.5
        whole = (s**2 + c**2).sqrt()
        f = self.network(x / whole, sigma.log() / 4, return_dict=False)[0]
        return c**2 / (s**2 + c**2) * x + s * c / whole * f


def edm(repository: Path) -> Case:
    """Return an EDM denoiser around diffusers' UNet2DModel, with the authors' noise levels and Euler's method."""
    diffusers = importlib.import_module("diffusers")
    network = Preconditioned(seeded(lambda: _unet2d(diffusers, 3), 0.05)).eval()
    file = export(network, (torch.randn(4, 3, 32, 32), torch.rand(4) + 0.1), repository.parent / "edm.pt2")
    steps, rho = 18, 7
    sigmas = (80 ** (1 / rho) + np.arange(steps) / (steps - 1) * (0.002 ** (1 / rho) - 80 ** (1 / rho))) ** rho
    levels = [*sigmas.tolist(), 0.0]
    declared = Declared(predicts="x0", path="edm", start=80.0, end=0.002)
    declared = replace(declared, sampling=declared.sampled("euler", levels))
    import_program(file, repository, "edm", (3, 32, 32), declared=declared)
    of = in_dtype(network)

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        x = 80 * x
        for now, after in pairwise(levels):
            x = x + (after - now) * (x - of(dtype)(x, torch.full((1,), now, dtype=dtype))) / now
        return x

    return Case(
        *("diffusers inside", "edm", size_of(network), code_lines(__file__, "Preconditioned")),
        *("the authors' 18 noise levels, Euler", plain),
        event=lambda sizes: (3, 32, 32),
    )
