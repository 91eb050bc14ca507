"""Eleven kinds of networks that people bring, each as its own library samples from it, and as Pathline imports it.

Classes of diffusers, sbi and TorchCFM are theirs, in small configs with random weights; what has no package here (a
Matcha-TTS-like decoder, a SmolVLA-like expert, an EGNN, a network of 202 million parameters) is written below or is an
example. A case whose package is missing raises `ModuleNotFoundError`.
"""

from __future__ import annotations

import ast
import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.parts import PreludeSource
from models.importing.weights import import_program
from models.noise import noise
from tests.examples.support import load_example

Tensors = Mapping[str, Tensor]
"""Conditions of one request by name, one row each."""

Plain = Callable[[Tensor, Tensors, int, torch.dtype], Tensor]
"""(noise (rows, *event), conditions, number of the request, dtype) -> samples, by the library's own sampler."""


@dataclass(frozen=True)
class Case:
    """A network, imported into a repository.

    Attributes:
        source: the package that its class is from, or `written here`.
        model: its name in the repository.
        parameters: how many it has.
        lines: lines of code that a user writes around the network.
        sampler: the library's sampler, in words.
        plain: draws samples in a plain loop; it is called with float64 only where `exact` is true.
        event: the shape of one state of a request, given its sizes.
        solver: the solver of requests; None for the one in the card.
        conditions: (number of the request, its sizes) -> its conditions.
        shapes: sizes of the free axes of the eight requests.
        samples: samples of a request.
        free, centred: places of free axes in a state, and of the axis along which noise has the mean zero.
        decode: whether requests get data; otherwise states.
        exact: whether it is compared with float64.
    """

    source: str
    model: str
    parameters: int
    lines: int
    sampler: str
    plain: Plain
    event: Callable[[Mapping[str, int]], tuple[int, ...]]
    solver: str | None = None
    conditions: Callable[[int, Mapping[str, int]], dict[str, NDArray[Any]]] = lambda k, sizes: {}
    shapes: Sequence[Mapping[str, int]] = field(default_factory=lambda: [{}])
    samples: int = 1
    free: tuple[int, ...] = ()
    centred: int | None = None
    exact: bool = True

    def sizes(self, k: int) -> Mapping[str, int]:
        """Return the sizes of the free axes of request k."""
        return self.shapes[k % len(self.shapes)]

    def options(self, k: int) -> dict[str, Any]:
        """Return the fields of request k."""
        options: dict[str, Any] = {"seed": k, "timeout_s": 600}
        if self.solver is not None:
            options["solver"] = self.solver
        if sizes := self.sizes(k):
            options["shape"] = dict(sizes)
        if conditions := self.conditions(k, sizes):
            options["conditions"] = conditions
        return options

    @torch.no_grad()
    def draw(self, k: int, dtype: torch.dtype = torch.float32) -> NDArray[Any]:
        """Return the samples of request k, by the library's own sampler from the same noise."""
        sizes = self.sizes(k)
        x = noise(k, 0, self.samples, self.event(sizes), free=self.free, centred=self.centred).to(dtype)
        rows = {name: torch.from_numpy(value)[None] for name, value in self.conditions(k, sizes).items()}
        floats = {name: row.to(dtype) if row.is_floating_point() else row for name, row in rows.items()}
        return self.plain(x, floats, k, dtype).numpy()


def code_lines(file: str | None, *names: str) -> int:
    """Return the number of lines of classes and functions in a file, without documentation and empty lines."""
    text = Path(str(file)).read_text()
    lines = dict(enumerate(map(str.strip, text.splitlines()), start=1))
    total = 0
    for part in ast.parse(text).body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name in names:
            documented = {
                line
                for node in ast.walk(part)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            }
            total += sum(
                bool(lines[line]) and line not in documented
                for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
            )
    return total


def normal(k: int, *shape: int) -> NDArray[np.float32]:
    """Return standard normal numbers from a seed."""
    return np.random.default_rng(k).normal(size=shape).astype(np.float32)


def seeded(make: Callable[[], nn.Module], spread: float | None = None) -> nn.Module:
    """Make a network with random weights from seed 0; with a `spread`, also those that its class starts at zero."""
    torch.manual_seed(0)
    network = make().eval().requires_grad_(False)
    for weights in network.parameters():
        if spread is not None and not weights.any():
            nn.init.normal_(weights, std=spread)
    return network


def in_dtype(network: nn.Module) -> Callable[[torch.dtype], nn.Module]:
    """Return dtype -> the network in it; in float64 with embeddings of times as its class rounds them."""
    double: list[nn.Module] = []

    def chosen(dtype: torch.dtype) -> nn.Module:
        if dtype == torch.float32:
            return network
        if not double:
            double.append(copy.deepcopy(network).double())
            for module in double[0].modules():
                module.register_forward_pre_hook(_doubled, with_kwargs=True)
                if isinstance(module, nn.GroupNorm):  # TorchCFM's casts to float32
                    module.forward = partial(nn.GroupNorm.forward, module)
        return double[0]

    return chosen


def _doubled(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Convert the arguments of a module, as networks cast some of them to float32."""

    def cast(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


def export(network: nn.Module, arguments: Sequence[Tensor], file: Path, shapes: Sequence[dict[int, Any]] = ()) -> Path:
    """Export a network with a free number of rows, and the other free sizes of each argument."""
    rows = torch.export.Dim("rows", min=1, max=63)
    every = shapes or [{}] * len(arguments)
    dynamic = tuple({0: rows, **sizes} for sizes in every)
    torch.export.save(torch.export.export(network, tuple(arguments), dynamic_shapes=dynamic), file)
    return file


def size_of(network: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(weights.numel() for weights in network.parameters())


def euler(velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, times: Sequence[float]) -> Tensor:
    """Integrate with Euler's method along these times."""
    for start, end in pairwise(times):
        x = x + (end - start) * velocity(x, torch.full((len(x),), start, dtype=x.dtype))
    return x


STRAIGHT = Declared(noise_at=0, scale=1.0, sign=1)


def torchcfm(repository: Path) -> Case:
    """Return TorchCFM's UNet, sampled by torchdiffeq as in its examples."""
    from torchdiffeq import odeint

    unet = importlib.import_module("torchcfm.models.unet.unet").UNetModelWrapper
    side, steps = 32, 20
    network = seeded(
        lambda: unet(
            dim=(3, side, side), num_channels=32, num_res_blocks=2, channel_mult=(1, 2, 2), attention_resolutions="16"
        ),
        0.05,
    )
    file = export(network, (torch.rand(4), torch.randn(4, 3, side, side)), repository.parent / "torchcfm.pt2")
    import_program(file, repository, "torchcfm", (3, side, side), declared=STRAIGHT)
    of = in_dtype(network)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        times = torch.linspace(0, 1, steps + 1, dtype=dtype)
        states: Any = odeint(lambda t, x: of(dtype)(t.expand(len(x)), x), x, times, method="euler")
        return states[-1]

    return Case(
        *("torchcfm", "torchcfm", size_of(network), 0, "torchdiffeq, Euler, 20 steps", plain),
        event=lambda sizes: (3, side, side),
        solver=f"euler-{steps}",
    )


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

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
        return flow_match(scheduler, steps, lambda x, t: of(dtype)(x, t, given["text"], given["pooled"]), x)

    return Case(
        *("diffusers", "pictures", size_of(network), code_lines(module.__file__, "Velocity")),
        *("FlowMatchEulerDiscreteScheduler, 8 steps", plain),
        event=lambda sizes: (4, sizes["H"], sizes["W"]),
        conditions=lambda k, sizes: {"text": normal(k, 12 + k, module.TEXT), "pooled": normal(k + 1, module.POOLED)},
        shapes=[{"H": 32 - 2 * k, "W": 24 + 2 * k} for k in range(8)],
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
    given = {"joint_attention_dim": 64, "pooled_projection_dim": 32, "guidance_embeds": True}
    transformer = lambda: diffusers.FluxTransformer2DModel(  # noqa: E731
        patch_size=1, in_channels=16, axes_dims_rope=(8, 12, 12), **wide, **given
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

    def plain(x: Tensor, rows: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        count = x.shape[2] * x.shape[3] // 4  # as FluxPipeline does
        mu = (count - 256) * (1.15 - 0.5) / (4096 - 256) + 0.5
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        guidance = torch.full((1,), 3.5, dtype=dtype)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            return of(dtype)(x, t / 1000, rows["text"], rows["pooled"], guidance)

        return flow_match(scheduler, steps, velocity, x, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)

    return Case(
        *("diffusers", "flux", size_of(network), code_lines(__file__, "FluxVelocity")),
        *("FlowMatchEulerDiscreteScheduler with FluxPipeline's shift, 8 steps", plain),
        event=lambda sizes: (4, sizes["H"], sizes["W"]),
        conditions=lambda k, sizes: {"text": normal(k, 32 + 8 * k, 64), "pooled": normal(k + 1, 32)},
        shapes=[{"H": 24, "W": 24}],
        free=(1, 2),
    )


class DiTNoise(nn.Module):
    """The call of DiT as f(x, t, label): the predicted noise, without the predicted variances."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        """Return the predicted noise (rows, 4, 16, 16)."""
        return self.network(x, timestep=t, class_labels=label, return_dict=False)[0][:, :4]


DDIM = {"_class_name": "DDIMScheduler", "clip_sample": False}


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

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        scheduler = diffusers.DDIMScheduler(clip_sample=False)
        return ddim(scheduler, 10, lambda x, t: of(dtype)(x, t.to(dtype), given["label"]), x)

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

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
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


class Vocoder(nn.Module):
    """A vocoder built like HiFi-GAN's, with the scales of spectrograms: states (rows, 80, T) -> sound (rows, 64 T)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: NDArray[np.float32], deviation: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(mean)[:, None])
        self.register_buffer("deviation", torch.from_numpy(deviation)[:, None])
        self.enter, self.leave = nn.Conv1d(80, 64, 7, padding=3), nn.Conv1d(8, 1, 7, padding=3)
        widths = (64, 32, 16, 8)
        self.up = nn.ModuleList(nn.ConvTranspose1d(a, b, 8, stride=4, padding=2) for a, b in pairwise(widths))
        self.around = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for width in widths[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Return the sound."""
        h = self.enter(x * self.deviation + self.mean)
        for up, around in zip(self.up, self.around, strict=True):
            h = up(nn.functional.leaky_relu(h, 0.1))
            h = h + around(nn.functional.leaky_relu(h, 0.1))
        return self.leave(h).tanh()[:, 0]


def matcha(repository: Path) -> Case:
    """Return a decoder built like Matcha-TTS's with a vocoder, and sounds of eight lengths."""
    module = load_example("mel_decoder")
    vars(module)["WIDTH"] = 128
    network = seeded(module.MelDecoder)
    vocoder = seeded(lambda: Vocoder(module.MEAN, module.DEVIATION))
    module.exported(network, repository.parent / "mel.pt2")
    frames = {2: 4 * torch.export.Dim("quarter", min=2, max=500)}
    sound = export(vocoder, (torch.randn(4, 80, 40),), repository.parent / "vocoder.pt2", [frames])
    import_program(
        *(repository.parent / "mel.pt2", repository, "mel", (80, "T")),
        inputs=module.INPUTS,
        conditions=module.CONDITIONS,
        axes={"T": {"min": 8}},
        declared=STRAIGHT,
        decoder={"program": sound},
    )
    of, to_sound = in_dtype(network), in_dtype(vocoder)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        mask = torch.ones(1, x.shape[2], dtype=torch.bool)
        x = euler(lambda x, t: of(dtype)(x, t, given["mu"], mask), x, np.linspace(0, 1, 11).tolist())
        return to_sound(dtype)(x)

    return Case(
        *("written here", "mel", size_of(network) + size_of(vocoder), 0, "Euler, 10 steps, then the vocoder", plain),
        event=lambda sizes: (80, sizes["T"]),
        solver="euler-10",
        conditions=lambda k, sizes: {"mu": normal(k, 80, sizes["T"])},
        shapes=[{"T": 160 + 16 * k} for k in range(8)],
        free=(1,),
    )


def smolvla(repository: Path) -> Case:
    """Return an action expert that attends to the keys and values of a prefix, 4 MB a request."""
    module = load_example("robot_chunks")
    vars(module).update(WIDTH=256, LAYERS=8, HORIZON=50, ACTIONS=32)
    patches = 256
    prefix, expert = seeded(module.Prefix), seeded(module.Expert)
    cache = torch.randn(4, module.LAYERS, patches, module.WIDTH)
    x = torch.randn(4, module.HORIZON, module.ACTIONS)
    arguments = (x, torch.rand(4), cache, cache + 1, x + 1, torch.arange(4))
    import_program(
        *(export(expert, arguments, repository.parent / "expert.pt2"), repository, "robot"),
        inputs=module.INPUTS,
        conditions=module.CONDITIONS,
        declared=STRAIGHT,
        prelude=PreludeSource(
            export(prefix, (torch.rand(4, 3, 64, 64),), repository.parent / "prefix.pt2"),
            inputs=["image"],
            outputs=["keys", "values"],
        ),
    )
    of, encoder = in_dtype(expert), in_dtype(prefix)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        keys, values = encoder(dtype)(given["image"].to(dtype) * (1 / 255))
        old, delay = given["prefix"], given["delay"]
        return euler(lambda x, t: of(dtype)(x, t, keys, values, old, delay), x, np.linspace(0, 1, 11).tolist())

    def conditions(k: int, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        image = np.random.default_rng(k).integers(0, 256, (3, 64, 64), dtype=np.uint8)
        return {"image": image, "prefix": normal(k, module.HORIZON, module.ACTIONS), "delay": np.array(k % 4)}

    return Case(
        *("written here", "robot", size_of(prefix) + size_of(expert), 0, "Euler, 10 steps", plain),
        event=lambda sizes: (module.HORIZON, module.ACTIONS),
        solver="euler-10",
        conditions=conditions,
    )


def sbi(repository: Path) -> Case:
    """Return a posterior of sbi's FMPE, briefly trained; sbi solves its path with zuko's adaptive method."""
    fmpe = importlib.import_module("sbi.inference").FMPE
    module = load_example("sbi_posterior")
    torch.manual_seed(0)
    prior = torch.distributions.MultivariateNormal(torch.zeros(module.THETA), torch.eye(module.THETA))
    theta = prior.sample((1000,))
    y = theta @ module.MIX.T + module.DEVIATION * torch.randn(1000, module.Y)
    inference = fmpe(prior)
    estimator = inference.append_simulations(theta, y).train(max_num_epochs=10)
    posterior = inference.build_posterior(estimator)
    module.imported(repository, estimator)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        flow = posterior.potential_fn.neural_ode(given["y"])
        return flow.transform.inv(x[:, None])[:, 0]

    return Case(
        *("sbi", "posterior", size_of(estimator), code_lines(module.__file__, "Posterior")),
        *("sbi's own (zuko, dopri5 at rtol 1e-5, atol 1e-6), 1,000 samples", plain),
        event=lambda sizes: (module.THETA,),
        solver="dopri5@1e-5/1e-6",
        conditions=lambda k, sizes: {"y": normal(k, module.Y)},
        samples=1000,
        exact=False,
    )


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

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        x = 80 * x
        for now, after in pairwise(levels):
            x = x + (after - now) * (x - of(dtype)(x, torch.full((1,), now, dtype=dtype))) / now
        return x

    return Case(
        *("diffusers inside", "edm", size_of(network), code_lines(__file__, "Preconditioned")),
        *("the authors' 18 noise levels, Euler", plain),
        event=lambda sizes: (3, 32, 32),
    )


class EGNN(nn.Module):
    """An equivariant graph network (Satorras et al. 2021) on all pairs of N points: positions (rows, N, 3)."""

    def __init__(self, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
            for _ in range(layers)
        )
        self.moves = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))
        self.nodes = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return velocities of mean zero."""
        rows, count, _ = x.shape
        h, place = self.enter(t[:, None, None]).expand(rows, count, -1), x
        for message, move, node in zip(self.messages, self.moves, self.nodes, strict=True):
            apart = place[:, :, None] - place[:, None]
            distance = apart.square().sum(-1, keepdim=True)
            one, other = h[:, :, None].expand(-1, -1, count, -1), h[:, None].expand(-1, count, -1, -1)
            m = message(torch.cat((one, other, distance), -1))
            place = place + (apart / (distance + 1).sqrt() * move(m)).mean(2)
            h = h + node(torch.cat((h, m.mean(2)), -1))
        v = place - x
        return v - v.mean(1, keepdim=True)


def egnn(repository: Path) -> Case:
    """Return an equivariant network with molecules of eight sizes."""
    network = seeded(EGNN)
    atoms = {1: torch.export.Dim("atoms", min=2, max=64)}
    file = export(network, (torch.randn(4, 7, 3), torch.rand(4)), repository.parent / "egnn.pt2", [atoms, {}])
    import_program(file, repository, "egnn", ("N", 3), declared=STRAIGHT, centred="N")
    of = in_dtype(network)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        return euler(of(dtype), x, np.linspace(0, 1, 21).tolist())

    return Case(
        *("written here", "egnn", size_of(network), 0, "Euler, 20 steps", plain),
        event=lambda sizes: (sizes["N"], 3),
        solver="euler-20",
        shapes=[{"N": 20 + k} for k in range(8)],
        free=(0,),
        centred=0,
    )


class Large(nn.Module):
    """A residual network of 202 million parameters on vectors of 64."""

    def __init__(self, width: int = 4096, layers: int = 12) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(65, width), nn.Linear(width, 64)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the velocities."""
        h = self.enter(torch.cat((x, t[:, None]), 1))
        for layer in self.layers:
            h = h + nn.functional.silu(layer(h))
        return self.leave(h)


def large(repository: Path) -> Case:
    """Return a network of 202 million parameters."""
    network = seeded(Large)
    file = export(network, (torch.randn(4, 64), torch.rand(4)), repository.parent / "large.pt2")
    import_program(file, repository, "large", declared=STRAIGHT)
    of = in_dtype(network)

    def plain(x: Tensor, given: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        return euler(of(dtype), x, np.linspace(0, 1, 11).tolist())

    return Case(
        *("written here", "large", size_of(network), 0, "Euler, 10 steps", plain),
        event=lambda sizes: (64,),
        solver="euler-10",
    )


CASES: dict[str, Callable[[Path], Case]] = {
    each.__name__: each for each in (torchcfm, sd3, flux, dit, unet2d, matcha, smolvla, sbi, edm, egnn, large)
}
