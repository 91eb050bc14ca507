"""From a sample of the flow to data: the inverse of what was done to the data before training."""

import math
from typing import Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from torch import Tensor, nn

from models.noise import noise
from models.row_padding import BUCKETS, RowCaller

_MAX_NUMBERS = 1 << 26  # of one tensor of a decoder; refuses absurd cards before anything is allocated


class DecoderConfig(BaseModel):
    """What a `Decoder` does; its numbers are tensors of the checkpoint.

    Attributes:
        kind: `identity`, `affine` (scale and shift) or `pca` (inverse principal components).
        event_shape: shape of one sample of the flow.
        data_shape: shape of one decoded sample.
        clip: lowest and highest value of decoded data, or None.
        dtype: `float64`: the tensors and the data are float64 whatever the states are, for data so far from zero that
            float32 would drop digits of them; None: the type of the states. Where it is None, cards leave it out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["identity", "affine", "pca"] = "identity"
    event_shape: tuple[int, ...] = Field(min_length=1, max_length=8)
    data_shape: tuple[int, ...] = Field(min_length=1, max_length=8)
    clip: tuple[float, float] | None = None
    dtype: Literal["float64"] | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = dump(self)
        if self.dtype is None:
            del fields["dtype"]
        return fields

    @property
    def event_size(self) -> int:
        """How many numbers one sample of the flow has."""
        return math.prod(self.event_shape)

    @property
    def data_size(self) -> int:
        """How many numbers one decoded sample has."""
        return math.prod(self.data_shape)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, shape in (("event_shape", self.event_shape), ("data_shape", self.data_shape)):
            if min(shape) < 1 or math.prod(shape) > _MAX_NUMBERS:
                raise ValueError(f"{name} is {shape}; it needs sizes of at least 1, {_MAX_NUMBERS} in all at most")
        if self.kind == "pca":
            if self.event_size * self.data_size > _MAX_NUMBERS:
                raise ValueError(f"{self.event_size} components of {self.data_size} numbers are too many")
        elif self.event_size != self.data_size:
            raise ValueError(f"{self.kind} cannot turn shape {self.event_shape} into {self.data_shape}")
        if self.clip is not None and not (math.isfinite(sum(self.clip)) and self.clip[0] < self.clip[1]):
            raise ValueError(f"clip is {self.clip}; it needs two finite numbers, the lower first")
        return self

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of this kind; samples are flattened to vectors."""
        if self.kind == "affine":
            return {"scale": (self.event_size,), "shift": (self.event_size,)}
        if self.kind == "pca":
            return {
                "mean": (self.data_size,),
                "components": (self.event_size, self.data_size),
                "latent_scale": (self.event_size,),
            }
        return {}


class Decoder(nn.Module):
    """Decodes rows of samples; made by `identity`, `affine` or `pca`, or empty from a config and then loaded.

    Attributes:
        config: the frozen description.
        data_shape: shape of one decoded sample.
    """

    scale: Tensor
    shift: Tensor
    mean: Tensor
    components: Tensor
    latent_scale: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.data_shape = config.data_shape
        dtype = torch.float64 if config.dtype else None
        for name, shape in config.tensor_shapes().items():
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))

    @classmethod
    def identity(
        cls,
        event_shape: tuple[int, ...],
        data_shape: tuple[int, ...] | None = None,
        clip: tuple[float, float] | None = None,
    ) -> Self:
        """A decoder that only reshapes (and clips, if asked)."""
        data_shape = event_shape if data_shape is None else data_shape
        return cls(DecoderConfig(kind="identity", event_shape=event_shape, data_shape=data_shape, clip=clip))

    @classmethod
    def affine(
        cls,
        scale: Tensor,
        shift: Tensor,
        data_shape: tuple[int, ...] | None = None,
        clip: tuple[float, float] | None = None,
        dtype: Literal["float64"] | None = None,
    ) -> Self:
        """Data = sample * scale + shift; both have the shape of one sample."""
        event_shape = tuple(scale.shape)
        data_shape = event_shape if data_shape is None else data_shape
        config = DecoderConfig(kind="affine", event_shape=event_shape, data_shape=data_shape, clip=clip, dtype=dtype)
        return cls(config)._filled(scale=scale.reshape(-1), shift=shift.reshape(-1))

    @classmethod
    def pca(
        cls,
        mean: Tensor,
        components: Tensor,
        latent_scale: Tensor,
        data_shape: tuple[int, ...],
        clip: tuple[float, float] | None = None,
    ) -> Self:
        """Data = (sample * latent_scale) @ components + mean.

        Args:
            mean: mean of the flattened data, (data,).
            components: one principal component a row, (latent, data).
            latent_scale: what a sample is multiplied by to give principal coordinates, (latent,).
            data_shape: shape of one decoded sample.
            clip: lowest and highest value of data, or None.
        """
        config = DecoderConfig(kind="pca", event_shape=(len(components),), data_shape=data_shape, clip=clip)
        return cls(config)._filled(mean=mean, components=components, latent_scale=latent_scale)

    def _filled(self, **tensors: Tensor) -> Self:
        for name, tensor in tensors.items():
            expected = self.config.tensor_shapes()[name]
            if tuple(tensor.shape) != expected:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; a {self.config} needs {expected}")
            setattr(self, name, tensor.detach().clone().contiguous())
        return self

    def decode(self, x: Tensor) -> Tensor:
        """Turn samples (rows, *event_shape) into data (rows, *data_shape), in the dtype of x or the decoder's own."""
        data = x.reshape(len(x), self.config.event_size)
        if self.config.dtype:
            data = data.double()
        if self.config.kind == "affine":
            data = data * self.scale + self.shift
        elif self.config.kind == "pca":
            data = (data * self.latent_scale) @ self.components + self.mean
        if self.config.clip is not None:
            data = data.clamp(*self.config.clip)
        return data.reshape(len(x), *self.data_shape)

    def forward(self, x: Tensor) -> Tensor:
        """The same as `decode`."""
        return self.decode(x)

    def row_stable(self, dtype: torch.dtype, device: torch.device | str = "cpu", max_rows: int = 1024) -> RowCaller:
        """`decode` with padding, so that a row's bits do not depend on its neighbours (see `models.row_padding`).

        Args:
            dtype: type of the samples, float32 or float64.
            device: where this decoder is.
            max_rows: the most rows decoded at once, rounded up to a multiple of 128.

        Returns:
            A function of samples (rows, *event_shape), rows at least 1.
        """
        limit = max(1, -(-max_rows // BUCKETS[-1])) * BUCKETS[-1]
        return RowCaller(self.decode, (noise(0, 0, limit, self.config.event_shape, dtype).to(device),), limit)
