"""Fused networks: one compiled call for a CPU, with the torch module as the reference.

A rule decides which networks are fused (`can_fuse`), never timing, so that a machine gives the same bits at every
start. A fused form is verified before it is used (`prepare`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conventions import Adapted
from models.fused.residual_mlp import FusedError, FusedResidualMLP, can_fuse
from models.named_conditions import NamedConditions
from models.noise import noise
from models.shapes import Shape, sized
from models.velocity import VelocityField
from solvers import resolve
from solvers.lanes import Admission, Lanes

__all__ = [
    "MAX_ERROR",
    "FusedError",
    "FusedResidualMLP",
    "Prepared",
    "accuracy_problem",
    "can_fuse",
    "prepare",
    "rms",
    "trial_rows",
    "warm_up",
]

Path = Literal["fused", "onnx", "eager"]

_TRIAL_ROWS = 64
MAX_ERROR = 2.0
"""A compiled form is refused if its rms distance from float64 is more than this many times the eager network's."""


@dataclass(frozen=True)
class Prepared:
    """A field in the form in which a CPU should evaluate it.

    Attributes:
        velocity: the field to call.
        path: how it is evaluated: as the fused form, by onnxruntime, or as the torch module.
        reason: why it is the torch module; empty if it is not.
        failed: whether the rule chose another form, but it cannot be made or is not accurate enough.
    """

    velocity: VelocityField
    path: Path
    reason: str
    failed: bool = False

    @property
    def unpadded(self) -> bool:
        """Whether its bits should not depend on the number of rows."""
        return self.path != "eager"


def prepare(velocity: nn.Module, condition: NamedConditions | None = None) -> Prepared:
    """Return the fused form of a loaded network, compiled and verified, or the network itself and the reason.

    Args:
        velocity: a network as a checkpoint loads it, possibly adapted from another convention.
        condition: what it is conditioned on.
    """
    network = velocity.network if isinstance(velocity, Adapted) else velocity
    if (why := can_fuse(network)) or not isinstance(network, ResidualMLP):
        return Prepared(velocity, "eager", why or "")
    try:
        warm_up()
        fused = FusedResidualMLP(network)
        form = Adapted(fused, velocity.time) if isinstance(velocity, Adapted) else fused
        why = accuracy_problem(velocity, form, trial_rows(network.event_shape, condition), "fused")
    except Exception as error:  # the compiler's errors have no common class; after any of them the module is used
        why = f"the fused form could not be compiled: {type(error).__name__}: {error}".splitlines()[0]
        return Prepared(velocity, "eager", why, failed=True)
    if why:
        return Prepared(velocity, "eager", why, failed=True)
    return Prepared(form, "fused", "")


def trial_rows(event_shape: Shape, condition: NamedConditions | None) -> tuple[Tensor, Tensor, Any]:
    """Return states, times over [0, 1] and conditions (64 rows) on which compiled forms are verified."""
    x = noise(0, 0, _TRIAL_ROWS, sized(event_shape, {}), torch.float32)
    given: Any = None if condition is None else condition.examples(_TRIAL_ROWS, torch.float32)
    return x, torch.linspace(0.0, 1.0, _TRIAL_ROWS), given


def accuracy_problem(velocity: nn.Module, form: VelocityField, given: tuple[Tensor, Tensor, Any], name: str) -> str:
    """Return why a compiled form of a field is not accurate enough, or an empty text.

    Args:
        velocity: the field as a torch module, adapted from another convention as it is served.
        form: the same, with the network compiled.
        given: states, times and conditions.
        name: of the form, for the message.
    """
    x, t, condition = given
    doubled = condition.double() if condition is not None and condition.is_floating_point() else condition
    with torch.no_grad():
        exact = copy.deepcopy(velocity).double()(x.double(), t.double(), doubled)
        eager, found = (rms(field(x, t, condition).double() - exact) for field in (velocity, form))
    if found <= MAX_ERROR * eager:  # false if either is NaN
        return ""
    return f"the {name} form is off by {found:.1e} (rms, from float64), the torch module by {eager:.1e}"


def rms(error: Tensor) -> float:
    """The root mean square."""
    return float(error.square().mean().sqrt())


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
