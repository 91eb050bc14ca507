"""The architectures a checkpoint can name: the one list of names, configs and builders.

A checkpoint stores a name and a config, never a class. A new architecture is one entry in `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from torch import nn

from models.architectures.analytic import Gaussian, GaussianConfig, Mixture, MixtureConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.architectures.unet import UNet, UNetConfig
from models.conditions import LabelCondition, VectorCondition
from models.program.network import Program, ProgramConfig

PROGRAM = "program"
"""The architecture of imported programs; a service serves them only if a setting allows it."""


class ArchitectureError(ValueError):
    """An architecture is unknown, or its config is not one it can be built with."""


@dataclass(frozen=True)
class Architecture:
    """One architecture: its frozen config and what builds a module from it.

    The module has `config`, `event_shape` and, if it takes conditions, `condition`; it is called as a `VelocityField`.
    """

    config: type[BaseModel]
    build: Callable[[Any], nn.Module]


ARCHITECTURES: dict[str, Architecture] = {
    "residual_mlp": Architecture(ResidualMLPConfig, ResidualMLP),
    "unet": Architecture(UNetConfig, UNet),
    "gaussian": Architecture(GaussianConfig, Gaussian),
    "mixture": Architecture(MixtureConfig, Mixture),
    PROGRAM: Architecture(ProgramConfig, Program),
}


def build(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Build an untrained module.

    Args:
        name: a key of `ARCHITECTURES`.
        config: the fields of its config; those left out take their defaults.

    Raises:
        ArchitectureError: the name is unknown, or a field of the config is unknown or out of bounds.
    """
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ArchitectureError(f"architecture is {name!r}; known are {', '.join(ARCHITECTURES)}")
    try:
        fields = architecture.config.model_validate(dict(config))
    except ValidationError as error:
        raise ArchitectureError(f"config of {name}: {explain(error)}") from None
    return architecture.build(fields)


def name_of(module: nn.Module) -> str:
    """The name of a module's architecture.

    Raises:
        ArchitectureError: the module is of none that is registered.
    """
    for name, architecture in ARCHITECTURES.items():
        if type(module) is architecture.build:
            return name
    known = ", ".join(ARCHITECTURES)
    raise ArchitectureError(f"{type(module).__name__} is not a registered architecture; known are {known}")


def event_shape_of(module: nn.Module) -> tuple[int, ...]:
    """The shape of one sample of a module that `build` made."""
    return cast("tuple[int, ...]", module.event_shape)


def condition_of(module: nn.Module) -> LabelCondition | VectorCondition | None:
    """What a module that `build` made is conditioned on, or None."""
    return cast("LabelCondition | VectorCondition | None", getattr(module, "condition", None))


_MOST_FAULTS = 20


def explain(error: ValidationError) -> str:
    """Say in one line what pydantic found: each field, the value found and what was expected.

    Of an unknown field the value is not told: nobody knows what it is. Of many the first are named.
    """
    parts, faults = [], error.errors(include_url=False, include_context=False)
    for item in faults[:_MOST_FAULTS]:
        field = _cut(".".join(str(part) for part in item["loc"])) or "value"
        found = "" if item["type"] in ("missing", "extra_forbidden") else f", found {_cut(repr(item['input']))}"
        parts.append(f"{field}: {item['msg']}{found}")
    more = len(faults) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
