"""The network: a frozen config with the name of its architecture, and the torch module that it builds.

An architecture is one file with its config and its module (see `models.architectures`). One that can be trained splits
its config in two: a size, which a training recipe chooses, and the rest, which follows from the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import ValidationError
from torch import nn

from models.conditions import NamedCondition, NamedConditions
from models.frozen import Frozen, Sparse
from models.messages import explain
from models.shapes import Shape
from models.velocity import FieldKind


class ArchitectureError(ValueError):
    """An architecture is unknown, or no network can be built from its config."""


class NetworkConfig(Sparse, ABC):
    """The config of a network of one architecture.

    Attributes:
        architecture: its name: a `Literal` with that name as default, which distinguishes the configs. A card keeps it
            beside the config.
        field: what the network returns and which times it takes; a plain velocity is not written.
    """

    unwritten = ("field",)

    architecture: Any
    field: FieldKind = FieldKind.VELOCITY

    @abstractmethod
    def build(self) -> Network:
        """Build the network with untrained weights."""


class NetworkSize(Frozen, ABC, strict=True):
    """The `[network]` table of a training recipe: the part of a config that does not follow from the data.

    Attributes:
        architecture: as in `NetworkConfig`.
        takes: whether samples are `vectors` (width,) or `pictures` (channels, height, width).
    """

    architecture: Any
    takes: ClassVar[Literal["vectors", "pictures"]]

    @abstractmethod
    def config(self, event_shape: tuple[int, ...], **more: Any) -> NetworkConfig:
        """Return the config of a network of this size for samples of a shape, with more of its fields.

        Raises:
            ValidationError: they clash.
        """

    def network(
        self,
        event_shape: tuple[int, ...],
        condition: NamedCondition | None = None,
        field: FieldKind = FieldKind.VELOCITY,
    ) -> Network:
        """Build a network of this size with untrained weights.

        Args:
            event_shape: shape of one sample.
            condition: what it is conditioned on, or None.
            field: see `NetworkConfig`.

        Raises:
            ArchitectureError: the size does not fit the shape.
        """
        try:
            return self.config(event_shape, condition=condition, field=field).build()
        except ValidationError as error:
            raise ArchitectureError(f"config of {self.architecture}: {explain(error)}") from None


Config = TypeVar("Config", bound=NetworkConfig, covariant=True)


class Network(nn.Module, Generic[Config]):
    """A velocity `v(x, t, condition)` with weights; called as a `models.velocity.VelocityField`.

    Attributes:
        config: what it was built from.
        compiled: the compiled forms that its architecture has (see `models.forms.form`): `fused`, made by the file
            `models/forms/fused/<architecture>.py`, and `onnx`.
        holds_program: whether its tensors are a program's: of dtypes of their own, with infinities in masks.
        event_shape: shape of one state; a name is a free axis.
        condition: what it is conditioned on, or None.
        field: what it returns and which times it takes.
    """

    config: Config
    compiled: ClassVar[tuple[str, ...]] = ()
    holds_program: ClassVar[bool] = False
    event_shape: Shape
    condition: NamedConditions | None
    field: FieldKind

    def __init__(self, config: Config, event_shape: Shape, condition: NamedConditions | None = None) -> None:
        super().__init__()
        self.config, self.event_shape, self.condition = config, event_shape, condition
        self.field = config.field
