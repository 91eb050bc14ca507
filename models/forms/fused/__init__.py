"""Fused networks: one compiled call for a CPU, with the torch module as the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.forms.fused.residual_mlp import FusedError, FusedResidualMLP, can_fuse
from models.shapes import sized
from solvers import resolve
from solvers.lanes import Admission, Lanes

__all__ = ["FusedError", "FusedResidualMLP", "can_fuse", "make", "warm_up"]


def make(network: ResidualMLP, folder: Path | None = None, digest: str = "") -> FusedResidualMLP:
    """Return the fused form of a network, compiled."""
    warm_up()
    return FusedResidualMLP(network)


@cache
def warm_up() -> None:
    """Compile the loops of fused networks, which takes seconds unless their machine code is cached on disk."""
    with torch.random.fork_rng(devices=()):
        network = FusedResidualMLP(ResidualMLP(ResidualMLPConfig(dim=1, hidden=1, blocks=0)).requires_grad_(False))
    network(torch.zeros(1, 1), torch.zeros(1))
    lanes = Lanes(sized(network.event_shape, {}))
    lanes.admit([Admission(resolve(solver="euler", steps=1), torch.zeros(1, 1))])
    if (runner := network.runner(rows=1)) is not None:
        lanes.run(runner, 1)
