"""Networks of TorchCFM and sbi, and those that have no package here, which are written below or are an example.

Without its package, a case raises `ModuleNotFoundError`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.importing.weights import import_program
from studies.networks.case import (
    STRAIGHT,
    Case,
    Tensors,
    code_lines,
    euler,
    export,
    in_dtype,
    normal,
    seeded,
    size_of,
)
from tests.examples.support import load_example


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

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        times = torch.linspace(0, 1, steps + 1, dtype=dtype)
        states: Any = odeint(lambda t, x: of(dtype)(t.expand(len(x)), x), x, times, method="euler")
        return states[-1]

    return Case(
        *("torchcfm", "torchcfm", size_of(network), 0, "torchdiffeq, Euler, 20 steps", plain),
        event=lambda sizes: (3, side, side),
        solver=f"euler-{steps}",
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

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        mask = torch.ones(1, x.shape[2], dtype=torch.bool)
        x = euler(lambda x, t: of(dtype)(x, t, conditions["mu"], mask), x, np.linspace(0, 1, 11).tolist())
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
        prelude=export(prefix, (torch.rand(4, 3, 64, 64),), repository.parent / "prefix.pt2"),
        prelude_inputs=["image"],
        prelude_outputs=["keys", "values"],
    )
    of, encoder = in_dtype(expert), in_dtype(prefix)

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        keys, values = encoder(dtype)(conditions["image"].to(dtype) * (1 / 255))
        old, delay = conditions["prefix"], conditions["delay"]
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

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        flow = posterior.potential_fn.neural_ode(conditions["y"])
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

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
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

    def plain(x: Tensor, conditions: Tensors, k: int, dtype: torch.dtype) -> Tensor:
        return euler(of(dtype), x, np.linspace(0, 1, 11).tolist())

    return Case(
        *("written here", "large", size_of(network), 0, "Euler, 10 steps", plain),
        event=lambda sizes: (64,),
        solver="euler-10",
    )
