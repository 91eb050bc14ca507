"""Which form a network takes: a table of rules, never a clock, so that a machine gives the same bits at every start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from models.conventions import Adapted
from models.forms import fused, onnx
from models.forms.form import Form, find_fault
from models.forms.form import Path as FormPath
from models.named_conditions import NamedConditions
from models.network import Network
from models.velocity import VelocityField


@dataclass(frozen=True)
class Rule:
    """One form other than the torch module.

    Attributes:
        path: its name.
        refusal: network -> why it does not have this form; None if it has it.
        make: (network, folder and hash of its checkpoint) -> the network in this form.
        failure: what is said if it cannot be made.
        name: what it is called in messages.
        independent: whether it computes each row by itself.
    """

    path: FormPath
    refusal: Callable[[object], str | None]
    make: Callable[[Any, Path, str], VelocityField]
    failure: str
    name: str
    independent: bool = False


FUSED = Rule("fused", fused.can_fuse, fused.make, "the fused form could not be compiled", "fused", independent=True)
ONNX = Rule("onnx", onnx.can_export, onnx.make, "the network could not be exported", "exported")
RULES = (FUSED, ONNX)
"""The forms in order of preference."""


def choose(
    velocity: nn.Module,
    condition: NamedConditions | None = None,
    folder: Path = Path(),
    digest: str = "",
    rules: tuple[Rule, ...] = RULES,
) -> Form:
    """Return the first form that the rules allow a loaded network, verified; else the network itself and the reason.

    Args:
        velocity: a network as a checkpoint loads it, possibly adapted from another convention.
        condition: what it is conditioned on.
        folder, digest: folder and hash of its checkpoint.
        rules: the forms to consider.
    """
    network = velocity.network if isinstance(velocity, Adapted) else velocity
    reasons: list[str] = []
    for rule in rules:
        if (why := rule.refusal(network)) is None:
            assert isinstance(network, Network)  # noqa: S101  (no rule allows anything else)
            return _made(rule, velocity, network, condition, folder, digest)
        if not reasons or why == onnx.MISSING:  # why it is not fused says most, unless something can be installed
            reasons.append(why)
    return Form(velocity, reason=", and ".join(reasons))


def _made(
    rule: Rule, velocity: nn.Module, network: Network[Any], condition: NamedConditions | None, folder: Path, digest: str
) -> Form:
    try:
        field = rule.make(network, folder, digest)
        form = Adapted(field, velocity.time) if isinstance(velocity, Adapted) else field
        fault = find_fault(velocity, form, network.event_shape, condition, rule.name)
    except Exception as error:  # compilers' errors have no common class; after any of them the module serves
        fault = f"{rule.failure}: {type(error).__name__}: {error}".splitlines()[0]
    else:
        if not fault:
            return Form(form, rule.path, independent=rule.independent, runner=getattr(form, "runner", None))
    return Form(velocity, reason=fault, failed=True)
