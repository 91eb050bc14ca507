"""Programs of velocities: networks imported as data, as lists of ATen operations (see `models.program.steps`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.conditions import NamedCondition, NamedConditions, tensors_of
from models.network import Network, NetworkConfig
from models.program import PROGRAM
from models.program.steps import CAST_DTYPES, FEW, MANY, StepsConfig, Stepwise
from models.shapes import AxisName
from models.velocity import VelocityField

_DOUBLED = {**CAST_DTYPES, "float32": torch.float64, "complex64": torch.complex128}
"""The dtypes that a float32 program casts to once it is converted to float64, the reference for rounding errors."""


class ProgramConfig(NetworkConfig, StepsConfig):
    """A velocity as a list of steps.

    Attributes:
        event_shape: shape of one state; a name is a free axis.
        dtype: dtype of states, times and velocities.
        time_dtype: dtype of times if it differs: float32 with half precision, or int64 for whole steps, to which times
            are rounded.
        end: how a field of average velocity takes the end of a step: as a time, `r`, or as the length of the step, `d`;
            None for a velocity.
        output: the name of the velocity. The names `x` and `t` denote states and times, and `c_name` a condition; of a
            field of average velocity, `t` is the start of a step, and `r` its end, or `d` its length, in own time.
        conditions: its conditions by name.
    """

    unwritten = (*NetworkConfig.unwritten, *StepsConfig.unwritten, "time_dtype", "end", "conditions")

    architecture: Literal["program"] = PROGRAM
    event_shape: tuple[int | AxisName, ...] = Field(min_length=1, max_length=8)
    dtype: str = Field(pattern="^(float(16|32|64)|bfloat16)$")
    time_dtype: Literal["float32", "int64"] | None = None
    end: Literal["r", "d"] | None = None
    output: str
    conditions: dict[str, NamedCondition] = Field(default_factory=dict)

    @property
    def takes(self) -> NamedConditions | None:
        """The conditions of the program."""
        return NamedConditions(self.conditions) if self.conditions else None

    @property
    def inputs(self) -> dict[str, str]:
        """The names of its conditions in steps, by their names in the card."""
        return {name: f"c_{name}" for name in self.conditions}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(isinstance(size, int) and size < 1 for size in self.event_shape):
            raise ValueError(f"event_shape is {list(self.event_shape)}; its sizes must be at least 1")
        if (self.end is None) == self.field.takes_ends:
            raise ValueError(
                f"field is {self.field}, and end is {self.end}; only an average velocity has an end, r or d"
            )
        times = ("t",) if self.end is None else ("t", self.end)
        self.check_steps(("x", *times, *self.inputs.values()), (self.output,))
        return self

    def build(self) -> Program:
        return Program(self)


class Program(Network[ProgramConfig], Stepwise):
    """The velocity `v(x, t, condition)` of a program."""

    compiled = ("onnx",)
    holds_program = True

    def __init__(self, config: ProgramConfig) -> None:
        super().__init__(config, config.event_shape, config.takes)
        self.add_steps(config, (config.output,))
        self.time_dtype = torch.float32 if config.time_dtype else CAST_DTYPES[config.dtype]

    def _times(self, t: Tensor) -> dict[str, Tensor]:
        """The times by their names in steps; a single time is that of a step without length."""
        if self.config.end is None:
            times = {"t": t}
        else:
            start, end = t.unbind(1) if t.ndim == 2 else (t, t)
            times = {"t": start, self.config.end: end if self.config.end == "r" else (end - start).abs()}
        whole = self.config.time_dtype == "int64"
        return {name: (time.round().long() if whole else time).contiguous() for name, time in times.items()}

    def forms(self) -> Iterator[VelocityField]:
        """Yield the program in the form whose bits depend less on the number of rows, if a CPU calls it with several.

        Then yield it as it is.
        """
        if self.cpu_rows != 1 and next(self.buffers(), torch.empty(0)).device.type == "cpu":
            yield partial(self, multiple=FEW if torch.get_num_threads() == 1 else MANY)
        yield self

    def forward(self, x: Tensor, t: Tensor, condition: Any = None, multiple: int = 1) -> Tensor:
        """Evaluate states x (rows, *event_shape) at times t (rows,); see `models.conditions` for the condition.

        Too many rows for one call are split over several, and too few are padded with copies of the first. For
        `multiple` see `Stepwise.run`.

        Raises:
            VelocityError: the program does not take this condition, or a step fails.
        """
        doubled = x.dtype is torch.float64 and self.config.dtype == "float32"
        inputs: dict[str, Tensor] = {"x": x} | self._times(t)
        rows = tensors_of(self.condition, condition, x)
        if doubled:
            rows = [row.double() if row.is_floating_point() else row for row in rows]
        inputs |= zip(self.config.inputs.values(), rows, strict=True)
        [velocity] = self.run(inputs, _DOUBLED if doubled else CAST_DTYPES, multiple)
        return velocity
