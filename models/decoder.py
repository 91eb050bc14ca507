"""The decoder, which turns samples of the flow into data, and its inverse."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.frozen import Sparse
from models.mixing import find_mixing_of
from models.noise import noise
from models.program.steps import Function, FunctionConfig
from models.shapes import AxisName, DataSize, Shape, computed, free_axes, reshaped, sized

KNOTS = 257
"""Points of the piecewise linear map of a column with the transform `quantile`."""

_MAX_NUMBERS = 1 << 26  # in one tensor of a decoder; an absurd card is refused before anything is allocated


Transform = Literal["log", "log1p", "quantile"]


class ColumnCard(Sparse):
    """One column of data that are rows.

    Attributes:
        name: its name in the user's file, or its number from 0.
        kind: `number`; `whole` or `yes-no` (0 and 1), whose decoded values are rounded and kept from `low` to `high`.
        low, high: smallest and largest value in the training rows.
        unit: its unit, as in the file; None (not written) if the file has none.
        decimals: decimal places of the data, with which samples are written as text; None (not written) if they have
            more than a few.
        transform: how the flow sees it, before scaling: `log`, its natural logarithm, so that every decoded value is
            above 0; `log1p`, that of 1 + value, so that none is below; `quantile`, piecewise linear through `KNOTS`
            stored points; None (not written) as it is.
    """

    unwritten = ("unit", "decimals", "transform")

    name: str
    kind: Literal["number", "whole", "yes-no"] = "number"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    unit: str | None = None
    decimals: int | None = Field(default=None, ge=0, le=15)
    transform: Transform | None = None

    def described(self) -> dict[str, Any]:
        """Return what comes with samples, JSON-ready: name and kind, and unit and decimals if it has them."""
        return self.model_dump(include={"name", "kind", "unit", "decimals"})

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"column {self.name!r} has low {self.low:g} above high {self.high:g}")
        return self


class DecoderConfig(Sparse):
    """The description of a `Decoder`; its numbers are tensors of the checkpoint.

    Attributes:
        kind: `identity`, `affine` (scale and shift, the same all along free axes), `pca` (inverse of a principal
            component analysis) or `program`.
        event_shape: shape of one sample of the flow; a name is a free axis (see `models.shapes`).
        data_shape: shape of one decoded sample, with the same free axes; for a program, with sizes that follow from
            some of them, such as `256*T`.
        clip: lowest and highest value of decoded data, or None.
        dtype: `float64` if tensors and data are float64 whatever the dtype of the states, for data so far from zero
            that float32 would lose digits; None (not written) for the dtype of the states.
        program: the function from `x` to `data`, for the kind `program`; None (not written) for the others.
        constants: for the kind `affine`: how many numbers of a sample never change; they are decoded to their stored
            values, whatever the state. 0 is not written.
        columns: a description of each column, for data that are rows of a fixed length; None (not written) for others.
    """

    unwritten = ("dtype", "program", "constants", "columns")

    kind: Literal["identity", "affine", "pca", "program"] = "identity"
    event_shape: tuple[int | AxisName, ...] = Field(min_length=1, max_length=8)
    data_shape: tuple[int | DataSize, ...] = Field(min_length=1, max_length=8)
    clip: tuple[float, float] | None = None
    dtype: Literal["float64"] | None = None
    program: FunctionConfig | None = None
    constants: int = Field(default=0, ge=0)
    columns: tuple[ColumnCard, ...] | None = None

    @property
    def reshapes_only(self) -> bool:
        """Whether decoded numbers are those of the state, in the same order."""
        return self.kind == "identity" and self.clip is None and not self.rounded

    @property
    def rounded(self) -> tuple[int, ...]:
        """The places of the columns that are decoded to whole numbers."""
        return tuple(place for place, column in enumerate(self.columns or ()) if column.kind != "number")

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape of a sample with size 1 along its free axes, which broadcasts over samples of any size."""
        return tuple(1 if isinstance(size, str) else size for size in self.event_shape)

    @model_validator(mode="after")
    def _check(self) -> Self:
        events, data = _fixed(self.event_shape), _fixed(self.data_shape)
        for name, shape, numbers in (("event_shape", self.event_shape, events), ("data_shape", self.data_shape, data)):
            if any(isinstance(size, int) and size < 1 for size in shape) or numbers > _MAX_NUMBERS:
                raise ValueError(
                    f"{name} is {shape}; each size must be at least 1, and their product at most {_MAX_NUMBERS}"
                )
        self._check_axes()
        if (self.kind == "program") != (self.program is not None):
            raise ValueError(
                f"kind is {self.kind}, {'without' if self.program is None else 'with'} a program; "
                "a decoder of kind program needs a program, and no other kind takes one"
            )
        if self.program is not None:
            if (set(self.program.inputs), set(self.program.outputs)) != ({"x"}, {"data"}):
                raise ValueError("the program of a decoder must turn x into data")
        elif self.kind == "pca":
            if events * data > _MAX_NUMBERS:
                raise ValueError(f"{events} components of {data} numbers are too many")
        elif events != data:
            raise ValueError(f"{self.kind} cannot turn shape {self.event_shape} into {self.data_shape}")
        if self.constants > (events if self.kind == "affine" and not free_axes(self.event_shape) else 0):
            raise ValueError(f"constants is {self.constants}; only affine decoders of a fixed shape have some")
        if self.columns is not None and self.data_shape != (len(self.columns),):
            raise ValueError(f"there are {len(self.columns)} columns for data of shape {self.data_shape}")
        if self.clip is not None and not (math.isfinite(sum(self.clip)) and self.clip[0] < self.clip[1]):
            raise ValueError(f"clip is {self.clip}; it must be two finite numbers, the lower first")
        return self

    def _check_axes(self) -> None:
        free = [sorted(free_axes(shape)) for shape in (self.event_shape, self.data_shape)]
        if self.kind == "program":
            if unknown := sorted(set(free[1]) - set(free[0])):
                raise ValueError(f"the free axes of samples are {free[0]}, but data have {unknown[0]}")
        elif free[0] != free[1]:
            raise ValueError(f"the free axes of samples are {free[0]}, those of data {free[1]}; they must agree")
        elif free[0] and self.kind == "pca":
            raise ValueError(f"a decoder of kind pca takes samples of a fixed shape, but axis {free[0][0]} is free")
        elif sizes := computed(self.data_shape):
            raise ValueError(f"data have the size {sizes[0]}, which only a program can produce")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of this kind's tensors; samples are flattened to vectors."""
        events, data = _fixed(self.event_shape), _fixed(self.data_shape)
        shapes: dict[str, tuple[int, ...]] = {}
        if self.kind == "affine":
            shapes = {"scale": (events,), "shift": (events,)}
            if self.constants:
                shapes |= {"constant_places": (self.constants,), "constants": (self.constants,)}
            if count := sum(column.transform == "quantile" for column in self.columns or ()):
                shapes["knots"] = (2, count, KNOTS)
        elif self.kind == "pca":
            shapes = {"mean": (data,), "components": (events, data), "latent_scale": (events,)}
        return shapes


class Decoder(nn.Module):
    """Decodes rows of samples; made by `identity`, `affine`, `pca` or `from_program`, or from a config to load into.

    Attributes:
        config: the frozen description.
        data_shape: shape of one decoded sample.
    """

    scale: Tensor
    shift: Tensor
    mean: Tensor
    components: Tensor
    latent_scale: Tensor
    constant_places: Tensor
    constants: Tensor
    knots: Tensor

    def __init__(self, config: DecoderConfig, program: Function | None = None) -> None:
        super().__init__()
        self.config = config
        self.data_shape = config.data_shape
        dtype = torch.float64 if config.dtype else None
        for name, shape in config.tensor_shapes().items():
            kind = torch.int64 if name == "constant_places" else dtype
            self.register_buffer(name, torch.zeros(shape, dtype=kind))
        # Of the config, so not buffers; made from arrays, as loading puts the buffers on the meta device first.
        whole = [(place, (config.columns or ())[place]) for place in config.rounded]
        self._whole = torch.from_numpy(np.array([place for place, _ in whole], dtype=np.int64))
        self._transformed: dict[Transform, Tensor] = {
            kind: torch.from_numpy(np.array(places, np.int64))
            for kind in get_args(Transform)
            if (places := [k for k, column in enumerate(config.columns or ()) if column.transform == kind])
        }
        self._limits = torch.from_numpy(np.array([(column.low, column.high) for _, column in whole]).reshape(-1, 2).T)
        self.program = Function(config.program) if program is None and config.program is not None else program

    @classmethod
    def identity(
        cls, event_shape: Shape, data_shape: Shape | None = None, clip: tuple[float, float] | None = None
    ) -> Self:
        """Make a decoder that only reshapes, and clips if `clip` is given."""
        data_shape = event_shape if data_shape is None else data_shape
        return cls(DecoderConfig(kind="identity", event_shape=event_shape, data_shape=data_shape, clip=clip))

    @classmethod
    def affine(
        cls,
        scale: Tensor,
        shift: Tensor,
        data_shape: Shape | None = None,
        clip: tuple[float, float] | None = None,
        dtype: Literal["float64"] | None = None,
        event_shape: Shape | None = None,
        constants: tuple[Tensor, Tensor] | None = None,
        columns: tuple[ColumnCard, ...] | None = None,
        knots: Tensor | None = None,
    ) -> Self:
        """Make a decoder with data = sample * scale + shift.

        Args:
            scale, shift: tensors in the shape of one sample, with size 1 along its free axes.
            data_shape: shape of one decoded sample; None for that of a sample.
            clip, dtype: see `DecoderConfig`.
            event_shape: shape of one sample, if it has free axes; None for that of `scale`.
            constants: places (k,) int64 in a flattened sample of numbers that never change, and their values (k,).
            columns: see `DecoderConfig`.
            knots: (2, columns with the transform `quantile`, `KNOTS`): what the flow sees, and data, both ascending.
        """
        event_shape = tuple(scale.shape) if event_shape is None else event_shape
        data_shape = event_shape if data_shape is None else data_shape
        tensors = {"scale": scale.reshape(-1), "shift": shift.reshape(-1)}
        if constants is not None and len(constants[0]):
            tensors |= {"constant_places": constants[0], "constants": constants[1]}
        if knots is not None:
            tensors["knots"] = knots
        config = DecoderConfig(
            kind="affine",
            event_shape=event_shape,
            data_shape=data_shape,
            clip=clip,
            dtype=dtype,
            constants=len(tensors.get("constants", ())),
            columns=columns,
        )
        return cls(config)._filled(**tensors)

    @classmethod
    def pca(
        cls,
        mean: Tensor,
        components: Tensor,
        latent_scale: Tensor,
        data_shape: Shape,
        clip: tuple[float, float] | None = None,
    ) -> Self:
        """Make a decoder with data = (sample * latent_scale) @ components + mean.

        Args:
            mean: mean of the flattened data, (data,).
            components: one principal component per row, (latent, data).
            latent_scale: factors from a sample to its principal coordinates, (latent,).
            data_shape: shape of one decoded sample.
            clip: lowest and highest value of data, or None.
        """
        config = DecoderConfig(kind="pca", event_shape=(len(components),), data_shape=data_shape, clip=clip)
        return cls(config)._filled(mean=mean, components=components, latent_scale=latent_scale)

    @classmethod
    def from_program(
        cls,
        program: Function,
        event_shape: Shape,
        data_shape: Shape,
        clip: tuple[float, float] | None = None,
    ) -> Self:
        """Make a decoder that runs a program."""
        config = DecoderConfig(
            kind="program", event_shape=event_shape, data_shape=data_shape, clip=clip, program=program.config
        )
        return cls(config, program)

    def _filled(self, **tensors: Tensor) -> Self:
        for name, tensor in tensors.items():
            expected = self.config.tensor_shapes()[name]
            if tuple(tensor.shape) != expected:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {expected}")
            setattr(self, name, tensor.detach().clone().contiguous())
        return self

    def decode(self, x: Tensor) -> Tensor:
        """Turn samples (rows, *event_shape) into data (rows, *data_shape), in the dtype of x or the decoder's own.

        Raises:
            VelocityError: a step of its program fails.
            DecoderError: its program returned another shape.
        """
        shape = reshaped(self.config.event_shape, x.shape[1:], self.data_shape)
        data, spread = x.double() if self.config.dtype else x, self.config.spread
        if self.program is not None:
            data = self.program({"x": x})["data"].to(x.dtype)
            if len(data) != len(x) or data[0].numel() != math.prod(shape):
                raise DecoderError(
                    f"the decoder returned {list(data.shape)} for {len(x)} states, expected {list(shape)} for each"
                )
        elif self.config.kind == "affine":
            data = self._untransformed(data * self.scale.reshape(spread) + self.shift.reshape(spread))
            if self.config.constants:
                values = self.constants.to(data.dtype).expand(len(x), -1)
                data = data.flatten(1).index_copy(1, self.constant_places, values)
        elif self.config.kind == "pca":
            data = (data.flatten(1) * self.latent_scale) @ self.components + self.mean
        data = data.reshape(len(x), *shape)
        if self.config.clip is not None:
            data = data.clamp(*self.config.clip)
        if len(self._whole):
            places, limits = self._whole.to(data.device), self._limits.to(data)
            # Adding 0 turns -0 into 0.
            data = data.index_copy(1, places, data[:, places].round().clamp(limits[0], limits[1]) + 0.0)
        return data

    def _untransformed(self, data: Tensor) -> Tensor:
        """Undo the transforms of columns of data (rows, columns), as far as float32 holds the result."""
        for kind, places in self._transformed.items():
            places, values = places.to(data.device), data[:, places.to(data.device)]
            if kind == "quantile":
                values = _interpolated(values, self.knots[0], self.knots[1])[0]
            else:
                values = values.clamp(max=80.0)
                values = values.exp() if kind == "log" else values.expm1().clamp(min=0.0)
            data = data.index_copy(1, places, values.to(data.dtype))
        return data

    def find_mixing(
        self, dtype: torch.dtype, device: torch.device | str = "cpu", sizes: Mapping[str, int] | None = None
    ) -> str | None:
        """Return how rows of a program depend on each other; None if they do not.

        Args:
            dtype: dtype of the states.
            device: the device of the decoder.
            sizes: sizes of the free axes of states.
        """
        event = sized(self.config.event_shape, sizes or {})
        return find_mixing_of(
            "decoder", lambda x: (self.decode(x),), lambda rows: (noise(3, 0, rows, event, dtype).to(device),)
        )


class DecoderError(ValueError):
    """A decoder did not return the data that its card declares."""


class InverseError(ValueError):
    """A decoder has no known inverse, or maps different samples to the same data."""


class Inverse:
    """The inverse of a decoder: encodes data as samples of the flow that decode to it.

    Clipping, rounding and constants cannot be undone and are ignored. For data outside the span of `pca` components,
    the nearest point in the span is encoded.
    """

    def __init__(self, decoder: Decoder) -> None:
        """Invert the decoder.

        Raises:
            InverseError: it has no inverse.
        """
        self._decoder, self._config = decoder, decoder.config
        self._log_volume = 0.0  # per position along free axes
        if self._config.kind == "program":
            raise InverseError("its decoder is a program, which cannot be run backwards")
        if self._config.kind == "affine":
            self._log_volume = _log_sum(decoder.scale, "scale")
            if "quantile" in decoder._transformed and bool((decoder.knots.diff() <= 0).any()):
                raise InverseError("its knots do not ascend")
        elif self._config.kind == "pca":
            components = decoder.components.double()
            singular = torch.linalg.svdvals(components)
            if not len(singular) or singular[-1] <= 1e-10 * singular[0]:
                raise InverseError("its components are not linearly independent")
            self._back = torch.linalg.pinv(components).to(decoder.components.dtype)
            self._log_volume = _log_sum(decoder.latent_scale, "latent_scale") + float(singular.log().sum())

    def log_volume(self, data: Tensor) -> Tensor:
        """Return log abs det J of the decoder at each of the samples that decode to data (rows, *data_shape): (rows,).

        For `pca`, this is the volume of the map onto the span of its components. Subtract it from the log-density of a
        sample to get that of its data.
        """
        positions = data[0].numel() // _fixed(self._config.data_shape)
        volume = torch.full((len(data),), self._log_volume * positions, dtype=torch.float64)
        for _, slopes in self._seen(data).values():
            volume += slopes.double().sum(1)
        return volume

    def _seen(self, data: Tensor) -> dict[Transform, tuple[Tensor, Tensor]]:
        """Return what the flow sees of the columns with each kind of transform, and log d data / d that."""
        seen: dict[Transform, tuple[Tensor, Tensor]] = {}
        for kind, places in self._decoder._transformed.items() if self._config.kind == "affine" else ():
            values = data.flatten(1)[:, places.to(data.device)]
            if kind == "quantile":
                state, slope = _interpolated(values, self._decoder.knots[1], self._decoder.knots[0])
                seen[kind] = state, -slope.log()
                continue
            # Limits for data that no sample decodes to; the residual shows them.
            least = torch.finfo(data.dtype).tiny if kind == "log" else torch.finfo(data.dtype).eps - 1
            logarithm = values.clamp(min=least).log() if kind == "log" else values.clamp(min=least).log1p()
            seen[kind] = logarithm, logarithm  # d exp(y) = d expm1(y) = exp(y) dy
        return seen

    def encode(self, data: Tensor) -> Tensor:
        """Turn data (rows, *data_shape) into samples (rows, *event_shape), in the dtype of the data.

        Give float64 data to the inverse of a float64 decoder, and round the samples to the dtype of the states.
        """
        shape = (len(data), *reshaped(self._config.data_shape, data.shape[1:], self._config.event_shape))
        decoder = self._decoder
        if self._config.kind == "affine":
            spread = self._config.spread
            for kind, (states, _) in self._seen(data).items():
                places = decoder._transformed[kind].to(data.device)
                data = data.flatten(1).index_copy(1, places, states.to(data.dtype))
            return (data.reshape(shape) - decoder.shift.reshape(spread)) / decoder.scale.reshape(spread)
        if self._config.kind == "pca":
            return (((data.flatten(1) - decoder.mean) @ self._back) / decoder.latent_scale).reshape(shape)
        return data.reshape(shape)


def _interpolated(values: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Map values (rows, columns) by the line through knots x, y (columns, `KNOTS`), ascending; return its slope, too.

    Outside the knots, the line goes on as straight as at its end.
    """
    values = values.to(x.dtype)
    place = torch.searchsorted(x, values.T.contiguous()).clamp(1, KNOTS - 1)
    (x0, x1), (y0, y1) = ((knots.gather(1, place - 1).T, knots.gather(1, place).T) for knots in (x, y))
    slope = (y1 - y0) / (x1 - x0)
    return y0 + (values - x0) * slope, slope


def _fixed(shape: Shape) -> int:
    return math.prod(size for size in shape if isinstance(size, int))


def _log_sum(scale: Tensor, name: str) -> float:
    if bool((scale == 0).any()):
        raise InverseError(f"its {name} holds zeros")
    return math.fsum(scale.double().abs().log().tolist())
