"""Programs: networks imported as data, as a list of ATen operations that is run step by step.

A program comes from `torch.export` (see `models.importing.programs`). The card stores it as plain JSON, and the weights
file its tensors. torch's own loader, which can be made to unpickle and to evaluate text, is not used.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from torch import Tensor

from models.conditions import ConditionConfig
from models.messages import first_line
from models.named_conditions import Conditioning, NamedCondition, NamedConditions
from models.network import Network, NetworkConfig
from models.program.aten import OperationError, operation
from models.shapes import AxisName
from models.velocity import VelocityError, refuse_condition

PROGRAM = "program"
"""The architecture of imported programs; a service serves them only if a setting allows it."""

TENSOR_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_FORMATS = {
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
    "channels_last": torch.channels_last,
}
_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_MOST_STEPS = 50_000


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(_Frozen):
    """A tensor of the program: its shape and the name of its dtype."""

    shape: tuple[int, ...] = Field(max_length=16)
    dtype: str


class Step(_Frozen):
    """One call.

    Attributes:
        op: target, such as `torch.ops.aten.add.Tensor`.
        args, kwargs: plain values, or objects: `{"value": name}` for an earlier result or a tensor, `{"dtype": name}`,
            `{"device": true}` for the device of the states, `{"format": name}` for a memory format, `{"number": text}`
            for a number that JSON cannot hold: Infinity, -Infinity or NaN.
        out: names of the results.
        single: whether there is one result rather than a list of them.
    """

    op: str = Field(max_length=200)
    args: tuple[JsonValue, ...] = ()
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    out: tuple[str, ...]
    single: bool = True


class ProgramConfig(NetworkConfig):
    """A velocity as a list of steps.

    Attributes:
        event_shape: shape of one state; a name is a free axis.
        dtype: of states, times and velocities.
        time_dtype: of times, where it is another: float32 beside half precision.
        tensors: its weights and constants by name.
        steps: in order; each uses only values that are known by then.
        output: the name of the velocity. The names `x` and `t` stand for states and times, `c` for the condition, and
            `c_name` for one that has a name.
        condition: what it is conditioned on, or None.
        conditions: what it is conditioned on by name, in place of `condition`.
        rows: the fewest and the most rows of one call; None for no bound.
    """

    architecture: Literal["program"] = PROGRAM
    event_shape: tuple[int | AxisName, ...] = Field(min_length=1, max_length=8)
    dtype: str = Field(pattern="^(float(16|32|64)|bfloat16)$")
    time_dtype: Literal["float32"] | None = None
    tensors: dict[str, Stored]
    steps: tuple[Step, ...] = Field(max_length=_MOST_STEPS)
    output: str
    condition: ConditionConfig | None = None
    conditions: dict[str, NamedCondition] = Field(default_factory=dict)
    rows: tuple[int, int | None] = (1, None)

    @model_serializer(mode="wrap")
    def _without_unsaid(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unsaid = {
            "time_dtype": self.time_dtype is None,
            "conditions": not self.conditions,
            "rows": self.rows == (1, None),
        }
        return {name: value for name, value in dump(self).items() if not unsaid.get(name)}

    @property
    def takes(self) -> Conditioning | None:
        """What the program is conditioned on."""
        return NamedConditions(self.conditions) if self.conditions else self.condition

    @property
    def inputs(self) -> dict[str, str]:
        """The names of its conditions in steps, by their names in the card."""
        return {"condition": "c"} if self.condition is not None else {name: f"c_{name}" for name in self.conditions}

    @model_validator(mode="after")
    def _check(self) -> Self:
        least, most = self.rows
        if least < 1 or (most is not None and most < least):
            raise ValueError(f"rows are {list(self.rows)}; it must be the fewest, at least 1, and the most or null")
        if any(isinstance(size, int) and size < 1 for size in self.event_shape):
            raise ValueError(f"event_shape is {list(self.event_shape)}; its sizes must be at least 1")
        for name, stored in self.tensors.items():
            if not name.isidentifier() or name in ("x", "t", "c", *self.inputs.values()):
                raise ValueError(f"a tensor is called {name[:50]!r}; it must be an identifier, and not x, t or c")
            if stored.dtype not in TENSOR_DTYPES or min(stored.shape, default=1) < 0:
                raise ValueError(f"tensor {name} is {stored.dtype} of shape {list(stored.shape)}")
        known = {"x", "t", *self.tensors, *self.inputs.values()}
        for number, step in enumerate(self.steps):
            try:
                operation(step.op)
            except OperationError as error:
                raise ValueError(f"step {number}: {error}") from None
            unknown = _names([*step.args, *step.kwargs.values()]) - known
            if unknown:
                raise ValueError(f"step {number} ({step.op}) uses {sorted(unknown)[0][:50]!r}, which is not known yet")
            known.update(step.out)
        if self.output not in known:
            raise ValueError(f"output is {self.output[:50]!r}, which no step makes")
        return self

    def build(self) -> Program:
        """See `NetworkConfig`."""
        return Program(self)


class Program(Network[ProgramConfig]):
    """The velocity `v(x, t, condition)` of a program."""

    may_hold_infinities = True

    def __init__(self, config: ProgramConfig) -> None:
        super().__init__(config, config.event_shape, config.takes)
        self.rows = config.rows
        self.time_dtype = TENSOR_DTYPES[config.time_dtype or config.dtype]
        for name, stored in config.tensors.items():
            # A module has attributes of its own, so the names get a prefix.
            self.register_buffer(f"data_{name}", torch.zeros(stored.shape, dtype=TENSOR_DTYPES[stored.dtype]))
        self._calls = [(operation(step.op), step, dead) for step, dead in zip(config.steps, _dead(config), strict=True)]

    def forward(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event_shape) at times t (rows,); see `models.conditions` for the condition.

        More rows than the program takes are given to it in pieces, and fewer with copies of the first.

        Raises:
            VelocityError: a condition that the program does not take, or a step that fails.
        """
        given: dict[str, Tensor] = {"x": x, "t": t}
        if self.condition is None:
            refuse_condition(condition)
        else:
            condition = self.condition.nulls(len(x), x.dtype, x.device) if condition is None else condition
            self.condition.check(condition, len(x), x.dtype)
            given |= zip(self.config.inputs.values(), self.condition.unpack(condition), strict=True)
        (least, most), rows = self.rows, len(x)
        if most is not None and rows > most:
            parts = zip(*(tensor.split(most) for tensor in given.values()), strict=True)
            return torch.cat([self._padded(dict(zip(given, part, strict=True)), least) for part in parts])
        return self._padded(given, least)

    def _padded(self, given: dict[str, Tensor], least: int) -> Tensor:
        rows = len(given["x"])
        if rows >= least:
            return self._run(given)
        copies = {name: torch.cat((a, a[:1].expand(least - rows, *a.shape[1:]))) for name, a in given.items()}
        return self._run(copies)[:rows]

    def _run(self, given: dict[str, Tensor]) -> Tensor:
        values: dict[str, Any] = dict(given)
        x = given["x"]
        for name in self.config.tensors:
            values[name] = getattr(self, f"data_{name}")
        for function, step, dead in self._calls:
            try:
                found = function(
                    *(_argument(value, values, x) for value in step.args),
                    **{name: _argument(value, values, x) for name, value in step.kwargs.items()},
                )
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
                name = step.out[0] if step.out else step.op
                raise VelocityError(f"step {name} ({step.op}): {first_line(error)}") from error
            values.update(zip(step.out, [found] if step.single else found, strict=True))
            for name in dead:
                del values[name]
        return values[self.config.output]


def _argument(value: Any, values: dict[str, Any], x: Tensor) -> Any:
    if isinstance(value, list | tuple):
        return [_argument(item, values, x) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "value":
        return values[content]
    if kind == "dtype":
        return TENSOR_DTYPES[content]
    if kind == "format":
        return _FORMATS[content]
    if kind == "number":
        return _NUMBERS[content]
    return x.device


def _names(value: Any) -> set[str]:
    """The names of the values that an argument refers to.

    Raises:
        ValueError: it is an object of an unknown kind.
    """
    if isinstance(value, list | tuple):
        return set().union(*map(_names, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    kind, content = next(iter(value.items())) if len(value) == 1 else ("", None)
    if kind == "value" and isinstance(content, str):
        return {content}
    known = {"dtype": TENSOR_DTYPES, "format": _FORMATS, "number": _NUMBERS}.get(kind, {})
    if kind != "device" and not (isinstance(content, str) and content in known):
        raise ValueError(f"an argument is {str(value)[:80]}; known are value, dtype, format, number and device")
    return set()


def _dead(config: ProgramConfig) -> list[list[str]]:
    """For each step, the values that no later one uses, so that their memory can be freed."""
    kept = {config.output, "x"}
    dead: list[list[str]] = []
    for step in reversed(config.steps):
        last = (_names([*step.args, *step.kwargs.values()]) | set(step.out)) - kept
        dead.append(sorted(last))
        kept |= last
    return dead[::-1]
