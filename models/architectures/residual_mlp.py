"""The residual MLP, the paper's velocity network, on `x` and a sinusoidal embedding of `t`.

    h = W_x x + W_t embed(t)                            (+ embed(condition), if there is one)
    h = h + Linear2(SiLU(Linear1(LayerNorm(h))))        for each block
    v = W_out LayerNorm(h)

A field of average velocity adds W_s embed(s - t) to the first line, for steps from t to s.

With 2-D data, hidden width 256 and 4 blocks it has 546,818 parameters (the paper says about 547K). With 64-D
data, width 512 and 6 blocks it has 3,258,432 (the paper says about 2.1M; four such blocks have 2,205,760).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, pad, silu

from models.architectures.embedding import (
    ConditionEmbedding,
    EmbeddedCondition,
    TimeEmbedding,
    sinusoids,
    span_linear,
    steps_of,
)
from models.conditions import one_condition
from models.network import Network, NetworkConfig, NetworkSize
from models.velocity import VelocityField, refuse_condition

_WHOLE = 16
"""How many numbers kernels compute together; a width that is a multiple of it leaves none for their remainder code."""


class ResidualMLPSize(NetworkSize):
    """The size of a `ResidualMLP`.

    Attributes:
        hidden: width of the residual stream.
        blocks: number of residual blocks.
        time_width: length of the embedding of t: half sines, half cosines.
        max_frequency: the highest angular frequency of the embedding, in radians per unit of t. A frequency w makes
            w / 2 pi turns over t in [0, 1]. A higher one lets the network wiggle in t, and every wiggle costs an
            adaptive solver extra steps. 6 makes about one turn; 100, as in the paper, makes 16, and DOPRI5 takes 1.5
            to 2.3 times the evaluations for samples that are no better (studies/flows/RECIPES.md).
    """

    architecture: Literal["residual_mlp"] = "residual_mlp"
    hidden: int = Field(default=256, ge=1, le=1 << 14)
    blocks: int = Field(default=4, ge=0, le=256)
    time_width: int = Field(default=64, ge=4, le=4096, multiple_of=2)
    max_frequency: float = Field(default=6.0, gt=1.0, le=1e6)
    takes: ClassVar[Literal["vectors", "pictures"]] = "vectors"

    def config(self, event_shape: tuple[int, ...], **more: Any) -> ResidualMLPConfig:
        return ResidualMLPConfig(**self.model_dump(), dim=event_shape[0], **more)


class ResidualMLPConfig(ResidualMLPSize, NetworkConfig, strict=False):
    """The config of a `ResidualMLP`.

    Attributes:
        dim: length of one sample.
        condition: what the velocity is conditioned on, or None.
    """

    dim: int = Field(ge=1, le=1 << 20)
    condition: EmbeddedCondition | None = None

    def build(self) -> ResidualMLP:
        return ResidualMLP(self)


class ResidualBlock(nn.Module):
    """The parameters of x + Linear2(SiLU(Linear1(LayerNorm(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, width)
        self.linear2 = nn.Linear(width, width)


class ResidualMLP(Network[ResidualMLPConfig]):
    """The velocity `v(x, t, condition)` of a flow on vectors of length `config.dim`."""

    compiled = ("fused", "onnx")

    def __init__(self, config: ResidualMLPConfig) -> None:
        super().__init__(config, (config.dim,), one_condition(config.condition))
        self.embed_time = TimeEmbedding(config.time_width, config.max_frequency)
        self.input = nn.Linear(config.dim, config.hidden)
        self.time = nn.Linear(config.time_width, config.hidden)
        self.span = span_linear(config.field, config.time_width, config.hidden)
        self.blocks = nn.Sequential(*(ResidualBlock(config.hidden) for _ in range(config.blocks)))
        self.norm = nn.LayerNorm(config.hidden)
        self.output = nn.Linear(config.hidden, config.dim)
        if config.condition is not None:
            self.embed_condition = ConditionEmbedding(config.condition, config.hidden)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate the velocity.

        Args:
            x: states, (rows, dim).
            t: times in [0, 1], (rows,), in the dtype of x; for a field of average velocity also (rows, 2).
            condition: one for each row, see `models.conditions`; None is the null of a conditional network.

        Returns:
            The velocities, (rows, dim).

        Raises:
            VelocityError: the network takes no condition, or the condition has the wrong shape or type.
        """
        return self.bare()(x, t, condition)

    def forms(self) -> Iterator[VelocityField]:
        """Yield the bare function; then, if the hidden width is not a multiple of 16, the filled one."""
        yield self.bare()
        if self.config.hidden % _WHOLE:
            yield self.filled()

    @torch.no_grad()
    def filled(self) -> Bare:
        """Return the same function with its hidden width zero-padded to a multiple of 16; parameters are copied.

        The added numbers stay zero or are multiplied by zero, and the norms leave them out, so only rounding differs.
        """
        config = self.config.model_copy(update={"hidden": -(-self.config.hidden // _WHOLE) * _WHOLE})
        with torch.device("meta"):
            wide = ResidualMLP(config)
        shapes = {key: tensor.shape for key, tensor in wide.state_dict().items()}
        filled = {key: _corner(tensor, shapes[key]) for key, tensor in self.state_dict().items()}
        wide.load_state_dict(filled, assign=True)
        bare, narrow = wide.requires_grad_(False).bare(), self.bare()
        norms = [_detached(norm) for norm, _, _ in narrow.blocks]
        blocks = [(norm, first, second) for norm, (_, first, second) in zip(norms, bare.blocks, strict=True)]
        return replace(bare, blocks=blocks, norm=_detached(narrow.norm))

    def bare(self) -> Bare:
        """Return the same function without its modules, for many calls; it sees in-place changes of the parameters."""
        steps = [
            (_scales(block.norm), _weights(block.linear1), _weights(block.linear2))
            for block in self.blocks
            if isinstance(block, ResidualBlock)
        ]
        return Bare(
            self.embed_time.frequencies,
            _weights(self.input),
            _weights(self.time),
            None if self.span is None else _weights(self.span),
            None if self.condition is None else self.embed_condition,
            steps,
            _scales(self.norm),
            _weights(self.output),
        )


_Pair = tuple[Tensor, Tensor]
_Scales = tuple[list[int], Tensor, Tensor, float]


def _weights(linear: nn.Linear) -> _Pair:
    return linear.weight, linear.bias


def _scales(norm: nn.LayerNorm) -> _Scales:
    return list(norm.normalized_shape), norm.weight, norm.bias, norm.eps


def _detached(scales: _Scales) -> _Scales:
    shape, weight, bias, eps = scales
    return shape, weight.detach(), bias.detach(), eps


def _corner(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Put a tensor into the first corner of a larger tensor of zeros."""
    larger = tensor.new_zeros(*shape)
    larger[tuple(slice(size) for size in tensor.shape)] = tensor
    return larger


def _normalised(hidden: Tensor, shape: list[int], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the first numbers of each row, and return zeros for the rest."""
    padding = hidden.shape[1] - shape[0]
    if not padding:
        return layer_norm(hidden, shape, weight, bias, eps)
    return pad(layer_norm(hidden[:, : shape[0]], shape, weight, bias, eps), (0, padding))


@dataclass(frozen=True)
class Bare:
    """A `ResidualMLP` as plain tensors.

    For Python, looking up a tensor in a module and calling a module takes longer than a product of a few rows. Without
    that overhead, a call of 16 rows takes three quarters of the time.
    """

    frequencies: Tensor
    input: _Pair
    time: _Pair
    span: _Pair | None
    embed_condition: ConditionEmbedding | None
    blocks: Sequence[tuple[_Scales, _Pair, _Pair]]
    norm: _Scales
    output: _Pair

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        t, span = (t, None) if self.span is None else steps_of(t)
        hidden = linear(x, *self.input) + linear(sinusoids(t, self.frequencies).to(x.dtype), *self.time)
        if self.span is not None and span is not None:
            hidden = hidden + linear(sinusoids(span, self.frequencies).to(x.dtype), *self.span)
        if self.embed_condition is None:
            refuse_condition(condition)
        else:
            hidden = hidden + self.embed_condition(condition, x)
        for norm, first, second in self.blocks:
            hidden = hidden + linear(silu(linear(_normalised(hidden, *norm), *first)), *second)
        return linear(_normalised(hidden, *self.norm), *self.output)
