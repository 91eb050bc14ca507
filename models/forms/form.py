"""The form of a field: which one a network takes, and how a compiled form is verified before it is used.

An architecture states its compiled forms (`Network.compiled`); which of them is taken follows from rules, never from a
clock, so that a machine gives the same bits at every start.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from models.conditions import NamedConditions
from models.conventions import Adapted
from models.forms.rows import same_bits
from models.messages import typed_line
from models.network import Network
from models.noise import noise
from models.shapes import Shape, sized
from models.velocity import FieldKind, VelocityField, kind_of
from solvers.state import Runner

FormName = Literal["fused", "onnx", "eager"]

MAX_ERROR = 2.0
"""A compiled form is refused if its rms distance from float64 is more than this many times the eager network's."""

_TRIAL_ROWS = 64
_COUNTS = (1, 2, 3, 5, 8, 16, 17, 32)
"""Numbers of rows at which the bits of a compiled form are compared."""


@dataclass(frozen=True)
class Form:
    """A field in the form in which it is evaluated.

    Attributes:
        velocity: the field to call.
        path: how it is evaluated: by compiled loops, by onnxruntime, or as the torch module.
        reason: why it is the torch module; empty if it is not.
        failed: whether the rule chose another form, but it cannot be made or is not good enough.
        independent: whether it computes each row by itself, in an order that no other row changes.
        runner: (*conditions, rows=N) -> compiled calls for N lanes, or None if these should not be used; None if there
            are no such calls.
    """

    velocity: VelocityField
    path: FormName = "eager"
    reason: str = ""
    failed: bool = False
    independent: bool = False
    runner: Callable[..., Runner | None] | None = None

    @property
    def field(self) -> FieldKind:
        """What it returns, and the times that it takes."""
        return kind_of(self.velocity)


@dataclass(frozen=True)
class FormKind:
    """One kind of compiled form.

    Attributes:
        path: its name.
        refusal: network -> why it does not have this form; None if it has it.
        make: (network, folder and hash of its checkpoint) -> the network in this form.
        failure: what is said if it cannot be made.
        name: what it is called in messages.
        independent: whether it computes each row by itself.
        missing: the refusal of a network that would have this form if something were installed.
    """

    path: FormName
    refusal: Callable[[Any], str | None]
    make: Callable[[Any, Path, str], VelocityField]
    failure: str
    name: str
    independent: bool = False
    missing: str = ""


_MAKERS: dict[FormName, str] = {"fused": "models.forms.fused.{}", "onnx": "models.forms.onnx"}
"""The module with the `MAKER` of each compiled form of an architecture, in order of preference."""


def choose(
    velocity: nn.Module, condition: NamedConditions | None = None, folder: Path = Path(), digest: str = ""
) -> Form:
    """Return the first compiled form that a loaded network has, verified; else the network itself and the reason.

    Args:
        velocity: a network as a checkpoint loads it, possibly adapted from another convention.
        condition: what it is conditioned on.
        folder, digest: folder and hash of its checkpoint.
    """
    if kind_of(velocity).takes_ends:
        return Form(velocity, reason="a field of average velocity has no compiled form")
    network = velocity.network if isinstance(velocity, Adapted) else velocity
    reasons: list[str] = []
    for path, module in _MAKERS.items():
        maker = why = None
        if isinstance(network, Network) and path in network.compiled:
            maker = import_module(module.format(network.config.architecture)).MAKER
            if (why := maker.refusal(network)) is None:
                return _verified(maker, velocity, network, condition, folder, digest)
        # Why there is not the first form says most, but for what can be installed.
        if not reasons or (maker and why == maker.missing):
            reasons.append(why or f"{type(network).__name__} has no {path} form")
    return Form(velocity, reason=", and ".join(reasons))


def _verified(
    maker: FormKind,
    velocity: nn.Module,
    network: Network[Any],
    condition: NamedConditions | None,
    folder: Path,
    digest: str,
) -> Form:
    try:
        field = maker.make(network, folder, digest)
        form = Adapted(field, velocity.time) if isinstance(velocity, Adapted) else field
        fault = find_fault(velocity, form, network.event_shape, condition, maker.name)
    except Exception as error:  # compilers' errors have no common class; after any of them the module serves
        fault = f"{maker.failure}: {typed_line(error)}"
    else:
        if not fault:
            return Form(form, maker.path, independent=maker.independent, runner=getattr(form, "runner", None))
    return Form(velocity, reason=fault, failed=True)


def find_fault(
    velocity: nn.Module, form: VelocityField, event_shape: Shape, condition: NamedConditions | None, name: str
) -> str:
    """Return why a compiled form of a field is not good enough, or an empty text.

    It must be as accurate as the torch module, and its rows must have the same bits in calls of several sizes.

    Args:
        velocity: the field as a torch module, adapted from another convention as it is served.
        form: the same, with the network compiled.
        event_shape: shape of one state, without free axes.
        condition: what it is conditioned on.
        name: of the form, for the message.
    """
    x, t = noise(0, 0, _TRIAL_ROWS, sized(event_shape, {}), torch.float32), torch.linspace(0.0, 1.0, _TRIAL_ROWS)
    conditions: Any = None if condition is None else condition.examples(_TRIAL_ROWS, torch.float32)
    doubled = conditions.double() if conditions is not None and conditions.is_floating_point() else conditions
    with torch.no_grad():
        exact = copy.deepcopy(velocity).double()(x.double(), t.double(), doubled)
        whole = form(x, t, conditions)
        both = (velocity(x, t, conditions), whole)
        eager, compiled = (float((v.double() - exact).square().mean().sqrt()) for v in both)
        if not compiled <= MAX_ERROR * eager:  # also if either is NaN
            return f"the {name} form is off by {compiled:.1e} (rms, from float64), the torch module by {eager:.1e}"
        for rows in _COUNTS:
            some = torch.randperm(len(x), generator=torch.Generator().manual_seed(rows))[:rows]
            if not same_bits(form(x[some], t[some], None if conditions is None else conditions[some]), whole[some]):
                return f"the {name} form has other bits in calls of {rows} rows"
    return ""
