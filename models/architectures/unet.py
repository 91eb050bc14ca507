"""A small UNet for pictures (Ronneberger et al. 2015), with t and condition in every block (Ho et al. 2020).

    down: blocks at each level, then half the height and width, and twice the channels after the first level
    up:   nearest-neighbour enlargement, joined to the picture of the same size from the way down, then one block

It has no attention. With 28 x 28 pictures, 32 channels, 3 levels and 1 block it has under 600,000 parameters.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.architectures.embedding import ConditionEmbedding, EmbeddedCondition, TimeEmbedding, span_linear, steps_of
from models.conditions import one_condition
from models.network import Network, NetworkConfig, NetworkSize
from models.velocity import refuse_condition

_MAX_NUMBERS = 1 << 24


class UNetSize(NetworkSize):
    """The size of a `UNet`.

    Attributes:
        hidden: channels of the first level.
        blocks: residual blocks of each level on the way down.
        levels: number of resolutions, each half as high and wide as the one before.
        time_width: length of the embedding of t.
        max_frequency: highest frequency of that embedding, as in `ResidualMLPSize`.
    """

    architecture: Literal["unet"] = "unet"
    hidden: int = Field(default=32, ge=4, le=1024, multiple_of=4)
    blocks: int = Field(default=1, ge=1, le=16)
    levels: int = Field(default=3, ge=1, le=8)
    time_width: int = Field(default=64, ge=4, le=4096, multiple_of=2)
    max_frequency: float = Field(default=6.0, gt=1.0, le=1e6)
    takes: ClassVar[Literal["vectors", "pictures"]] = "pictures"

    def config(self, event_shape: tuple[int, ...], **more: Any) -> UNetConfig:
        return UNetConfig.model_validate({**self.model_dump(), "shape": event_shape, **more})


class UNetConfig(UNetSize, NetworkConfig, strict=False):
    """The config of a `UNet`.

    Attributes:
        shape: channels, height and width of a picture; the last two must be divisible by 2 ^ (`levels` - 1).
        condition: what the velocity is conditioned on, or None.
    """

    shape: tuple[int, int, int]
    condition: EmbeddedCondition | None = None

    @model_validator(mode="after")
    def _halves(self) -> Self:
        part = 1 << (self.levels - 1)
        if min(self.shape) < 1 or math.prod(self.shape) > _MAX_NUMBERS or self.shape[1] % part or self.shape[2] % part:
            raise ValueError(
                f"shape is {self.shape}; {self.levels} levels need a height and a width divisible by {part}: "
                "resize the pictures or use fewer levels"
            )
        return self

    @property
    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.hidden if level == 0 else 2 * self.hidden for level in range(self.levels)]

    def build(self) -> UNet:
        return UNet(self)


class UNetBlock(nn.Module):
    """x + Conv(SiLU(Norm(Conv(SiLU(Norm(x))) + W embedding))); a 1 x 1 convolution adapts x if channels change."""

    def __init__(self, before: int, after: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.embedding = nn.Linear(embedding, after)
        self.norm2 = nn.GroupNorm(4, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map pictures (rows, before, h, w) and embeddings (rows, width) to (rows, after, h, w)."""
        hidden = self.conv1(self.activation(self.norm1(x))) + self.embedding(embedding)[:, :, None, None]
        return self.skip(x) + self.conv2(self.activation(self.norm2(hidden)))


class UNet(Network[UNetConfig]):
    """The velocity `v(x, t, condition)` of a flow on pictures of shape `config.shape`."""

    compiled = ("onnx",)

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config, config.shape, one_condition(config.condition))
        channels, widths, embedding = config.shape[0], config.widths, 4 * config.hidden
        self.embed_time = TimeEmbedding(config.time_width, config.max_frequency)
        self.time = nn.Sequential(nn.Linear(config.time_width, embedding), nn.SiLU())
        self.span = span_linear(config.field, config.time_width, embedding)
        self.input = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            nn.ModuleList(
                UNetBlock(widths[max(level - 1, 0)] if block == 0 else width, width, embedding)
                for block in range(config.blocks)
            )
            for level, width in enumerate(widths)
        )
        self.middle = UNetBlock(widths[-1], widths[-1], embedding)
        self.up = nn.ModuleList(
            UNetBlock(widths[min(level + 1, config.levels - 1)] + width, width, embedding)
            for level, width in reversed(list(enumerate(widths)))
        )
        self.norm = nn.GroupNorm(4, widths[0])
        self.output = nn.Conv2d(widths[0], channels, 3, padding=1)
        if config.condition is not None:
            self.embed_condition = ConditionEmbedding(config.condition, embedding)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate the velocity.

        Args:
            x: pictures, (rows, channels, height, width).
            t: times in [0, 1], (rows,), in the dtype of x; for a field of average velocity also (rows, 2).
            condition: one for each row, see `models.conditions`; None is the null of a conditional network.

        Returns:
            The velocities, in the shape of x.

        Raises:
            VelocityError: the network takes no condition, or the condition has the wrong shape or type.
        """
        t, span = (t, None) if self.span is None else steps_of(t)
        embedding = self.time(self.embed_time(t).to(x.dtype))
        if self.span is not None and span is not None:
            embedding = embedding + self.span(self.embed_time(span).to(x.dtype))
        if self.condition is None:
            refuse_condition(condition)
        else:
            embedding = embedding + self.embed_condition(condition, x)
        hidden = self.input(x)
        halves = []
        for level, blocks in enumerate(self.down):
            if level:
                hidden = nn.functional.avg_pool2d(hidden, 2)
            for block in blocks.children():
                hidden = block(hidden, embedding)
            halves.append(hidden)
        hidden = self.middle(hidden, embedding)
        for step, block in enumerate(self.up):
            if step:
                hidden = nn.functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = block(torch.cat((hidden, halves.pop()), dim=1), embedding)
        return self.output(nn.functional.silu(self.norm(hidden)))
