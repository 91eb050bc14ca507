"""Architectures and their list; each is one file, with a frozen config and the network that it builds.

A checkpoint stores the name of an architecture and its config, never a class. A new architecture is a file here and a
line in `ARCHITECTURES`. If its config extends a `NetworkSize`, training recipes can choose it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.architectures.analytic import GaussianConfig, MixtureConfig
from models.architectures.residual_mlp import ResidualMLPConfig
from models.architectures.unet import UNetConfig
from models.messages import explain
from models.network import ArchitectureError, Network, NetworkConfig, NetworkSize
from models.program import PROGRAM
from models.program.network import ProgramConfig

__all__ = ["ARCHITECTURES", "PROGRAM", "SIZES", "ArchitectureError", "build"]

ARCHITECTURES: dict[str, type[NetworkConfig]] = {
    config.model_fields["architecture"].default: config
    for config in (ResidualMLPConfig, UNetConfig, GaussianConfig, MixtureConfig, ProgramConfig)
}
"""The config of each architecture by its name."""

SIZES: dict[str, type[NetworkSize]] = {
    name: size for name, config in ARCHITECTURES.items() for size in config.__bases__ if issubclass(size, NetworkSize)
}
"""The sizes of the architectures that can be trained."""


def build(name: str, config: Mapping[str, Any]) -> Network:
    """Build a network with untrained weights.

    Args:
        name: a key of `ARCHITECTURES`.
        config: the fields of its config; those left out take their defaults.

    Raises:
        ArchitectureError: the name is unknown, or a field of the config is unknown or out of bounds.
    """
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ArchitectureError(f"architecture is {name!r}; use one of {', '.join(ARCHITECTURES)}")
    try:
        return architecture.model_validate(dict(config)).build()
    except ValidationError as error:
        raise ArchitectureError(f"config of {name}: {explain(error)}") from None
