"""Steps: a program as a list of ATen operations, checked once and then run one by one.

Programs come from `torch.export` (see `models.importing.programs`). The card stores the steps as plain JSON, the
weights file their tensors. torch's own loader, which can be made to unpickle and to evaluate text, is not used.

Before a program first computes with inputs of some shapes, it runs on tensors without numbers, so that one whose
results would not fit into memory fails before they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from models.conditions import DTYPES
from models.frozen import Frozen, Sparse
from models.messages import first_line
from models.program.aten import OperationError, operation
from models.velocity import VelocityError, rows_of

CAST_DTYPES = {**DTYPES, "complex64": torch.complex64, "complex128": torch.complex128}
"""What steps may cast to; tensors, inputs and results are never complex."""
MAX_STEPS = 50_000
_UNLIKELY = 1 << 40  # numbers of a tensor, if it were not empty
MAX_BYTES = 4 << 30
"""The most bytes of results that a program holds at one time, its own tensors not counted."""

Dtypes = Mapping[str, torch.dtype]

_FORMATS = {
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
    "channels_last": torch.channels_last,
}
_FAULTS = (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, NotImplementedError, AssertionError)
"""What torch raises for arguments that do not fit, depending on who checks them."""
_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

RowLimits = tuple[int, int | None]
"""Minimum and maximum number of rows per call; None for no limit."""


class TensorCard(Frozen):
    """A tensor of the program: its shape and the name of its dtype."""

    shape: tuple[int, ...] = Field(max_length=16)
    dtype: str


class Step(Frozen):
    """One call.

    Attributes:
        op: target, such as `torch.ops.aten.add.Tensor`.
        args, kwargs: plain values, or objects: `{"value": name}` for an earlier result or a tensor, `{"dtype": name}`,
            `{"device": true}` for the device of the inputs, `{"format": name}` for a memory format, `{"complex": [real,
            imaginary]}`, `{"number": text}` for a number that JSON cannot hold: Infinity, -Infinity or NaN.
        out: names of the results.
        single: whether there is one result rather than a list of them.
    """

    op: str = Field(max_length=200)
    args: tuple[JsonValue, ...] = ()
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    out: tuple[str, ...]
    single: bool = True


class StepsConfig(Sparse):
    """The steps of a program and its tensors.

    Attributes:
        tensors: weights and constants by name.
        steps: the steps in order; each uses only values already computed.
        rows: minimum and maximum number of rows per call; None for no limit.
        alone_on_cpu: whether a CPU calls it with one row at a time, as a row costs hardly less in a batch.
    """

    unwritten = ("rows", "alone_on_cpu")

    tensors: dict[str, TensorCard]
    steps: tuple[Step, ...] = Field(max_length=MAX_STEPS)
    rows: RowLimits = (1, None)
    alone_on_cpu: bool = False

    def check_steps(self, inputs: Collection[str], outputs: Collection[str]) -> None:
        """Raise a ValueError unless all operations are allowed and each value is computed before it is used.

        Args:
            inputs, outputs: the names of the inputs, and of the results.
        """
        least, most = self.rows
        if least < 1 or (most is not None and most < least):
            raise ValueError(
                f"rows are {list(self.rows)}; they must be the minimum, at least 1, and the maximum or null"
            )
        for name, tensor in self.tensors.items():
            if not name.isidentifier() or name in inputs:
                names = ", ".join(sorted(inputs))
                raise ValueError(f"a tensor is called {name[:50]!r}; it must be an identifier, and not one of {names}")
            large = math.prod(max(1, size) for size in tensor.shape) >= _UNLIKELY
            if tensor.dtype not in DTYPES or min(tensor.shape, default=1) < 0 or large:
                raise ValueError(f"tensor {name} is {tensor.dtype} of shape {list(tensor.shape)}")
        values = {*inputs, *self.tensors}
        for number, step in enumerate(self.steps):
            try:
                operation(step.op)
            except OperationError as error:
                raise ValueError(f"step {number}: {error}") from None
            arguments = [*step.args, *step.kwargs.values()]
            if step.op.startswith("_operator.") and not all(isinstance(a, int | float | dict) for a in arguments):
                raise ValueError(f"step {number} ({step.op}) takes numbers only")
            unknown = names_in(arguments) - values
            if unknown:
                raise ValueError(f"step {number} ({step.op}) uses {sorted(unknown)[0][:50]!r}, which is not known yet")
            values.update(step.out)
        for output in outputs:
            if output not in values:
                raise ValueError(f"output is {output[:50]!r}, which no step produces")


class Stepwise(nn.Module):
    """A module that runs the steps of its config; the program's tensors are its buffers.

    Attributes:
        config: its `StepsConfig`.
    """

    config: Any

    def add_steps(self, config: StepsConfig, outputs: Sequence[str]) -> None:
        """Make a buffer for each tensor, and prepare the steps.

        Args:
            config: the steps.
            outputs: the names of the results.
        """
        self._outputs = tuple(outputs)
        for name, tensor in config.tensors.items():
            # The prefix keeps the names apart from the module's own attributes.
            self.register_buffer(f"data_{name}", torch.zeros(tensor.shape, dtype=DTYPES[tensor.dtype]))
        functions = [operation(step.op) for step in config.steps]
        self._calls: list[tuple[Callable[..., Any], Step, list[str], bool]] = [
            (function, step, last, _is_placed(function))
            for function, step, last in zip(functions, config.steps, _last_uses(config.steps, outputs), strict=True)
        ]
        self._fitting_rows: dict[tuple[tuple[int, ...], ...], int] = {}  # by the shapes of a row of each input

    @property
    def rows(self) -> RowLimits:
        """The minimum and maximum number of rows per call; None for no limit."""
        return self.config.rows

    @property
    def alone_on_cpu(self) -> bool:
        """See `StepsConfig`."""
        return self.config.alone_on_cpu

    def run(self, inputs: Mapping[str, Tensor], dtypes: Dtypes = CAST_DTYPES) -> tuple[Tensor, ...]:
        """Return the results for inputs (rows, ...) by name, at least one row.

        Too many rows for one call are split over several, and too few are padded with copies of the first.

        Args:
            inputs: the inputs by name.
            dtypes: the dtypes that steps cast to, by their names.

        Raises:
            VelocityError: a step fails.
        """
        x = next(iter(inputs.values()))
        (least, most), rows = rows_of(self, x.device), x.shape[0]  # `len` would fix the rows of an export
        if most is not None and rows > most:
            parts = zip(*(tensor.split(most) for tensor in inputs.values()), strict=True)
            results = [self._padded(dict(zip(inputs, part, strict=True)), least, dtypes) for part in parts]
            return tuple(torch.cat(result) for result in zip(*results, strict=True))
        return self._padded(inputs, least, dtypes)

    def _padded(self, inputs: Mapping[str, Tensor], least: int, dtypes: Dtypes) -> tuple[Tensor, ...]:
        rows = next(iter(inputs.values())).shape[0]
        if rows >= least:
            return self._fitting(inputs, dtypes)
        copies = {name: torch.cat((a, a[:1].expand(least - rows, *a.shape[1:]))) for name, a in inputs.items()}
        return tuple(result[:rows] for result in self._fitting(copies, dtypes))

    def _fitting(self, inputs: Mapping[str, Tensor], dtypes: Dtypes) -> tuple[Tensor, ...]:
        """Run the steps, once it is clear that their results fit into memory."""
        rows, *_ = sizes = [size for tensor in inputs.values() for size in tensor.shape]
        if all(isinstance(size, int) for size in sizes):  # not those of an export
            row = tuple(tuple(tensor.shape[1:]) for tensor in inputs.values())
            if rows > self._fitting_rows.get(row, 0):
                shapes = {name: torch.empty(a.shape, dtype=a.dtype, device="meta") for name, a in inputs.items()}
                with _disable_current_modes():  # whoever counts operations counts those of the call alone
                    self._run(shapes, dtypes)
                self._fitting_rows[row] = rows
        return self._run(inputs, dtypes)

    def _run(self, inputs: Mapping[str, Tensor], dtypes: Dtypes) -> tuple[Tensor, ...]:
        values: dict[str, Any] = dict(inputs)
        device = next(iter(inputs.values())).device
        sizing, held = device.type == "meta", dict[str, int]()
        for name in self.config.tensors:
            tensor = getattr(self, f"data_{name}")
            values[name] = tensor.to("meta") if sizing else tensor
        for function, step, dead, placed in self._calls:
            try:
                named = {name: _argument(value, values, device, dtypes) for name, value in step.kwargs.items()}
                if placed:
                    named["device"] = device
                out = function(*(_argument(value, values, device, dtypes) for value in step.args), **named)
            except _FAULTS as error:
                name, why = step.out[0] if step.out else step.op, first_line(error)
                if "index out of range" in why:
                    why += "; if it is of a label, declare the number of labels as `classes` of that condition"
                raise VelocityError(f"step {name} ({step.op}): {why}") from error
            results = [out] if step.single else list(out)
            values.update(zip(step.out, results, strict=True))
            if sizing and not getattr(function, "is_view", False):
                held.update(zip(step.out, map(_bytes, results), strict=True))
                if (total := sum(held.values())) > MAX_BYTES:
                    raise VelocityError(
                        f"step {step.out[0]} ({step.op}) would bring the program's results to {total >> 20} MiB for "
                        f"{next(iter(inputs.values())).shape[0]} rows; {MAX_BYTES >> 20} MiB are allowed"
                    )
            for name in dead:
                del values[name]
                held.pop(name, None)
        return tuple(values[name] for name in self._outputs)


def _is_placed(function: Any) -> bool:
    """Whether a function makes a tensor on a device of its own choice unless it is told one."""
    arguments = function._schema.arguments if hasattr(function, "_schema") else ()
    return any(argument.name == "device" and argument.kwarg_only for argument in arguments)


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor) else 0


def _argument(value: Any, values: Mapping[str, Any], device: torch.device, dtypes: Dtypes) -> Any:
    if isinstance(value, list | tuple):
        return [_argument(item, values, device, dtypes) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "value":
        return values[content]
    if kind == "dtype":
        return dtypes[content]
    if kind == "format":
        return _FORMATS[content]
    if kind == "number":
        return _NUMBERS[content]
    if kind == "complex":
        return complex(*content)
    return device


def names_in(value: Any) -> set[str]:
    """Return the names of the values that an argument refers to.

    Raises:
        ValueError: it is an object of an unknown kind.
    """
    if isinstance(value, list | tuple):
        return set().union(*map(names_in, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    kind, content = next(iter(value.items())) if len(value) == 1 else ("", None)
    if kind == "value" and isinstance(content, str):
        return {content}
    if kind == "complex" and isinstance(content, list) and [type(part) for part in content] == [float, float]:
        return set()
    names = {"dtype": CAST_DTYPES, "format": _FORMATS, "number": _NUMBERS}.get(kind, {})
    if kind != "device" and not (isinstance(content, str) and content in names):
        raise ValueError(f"an argument is {str(value)[:80]}; use value, dtype, format, number, complex or device")
    return set()


def _last_uses(steps: Sequence[Step], outputs: Collection[str]) -> list[list[str]]:
    """Return, for each step, the values that no later step uses, so that their memory can be freed."""
    used = set(outputs)
    dead: list[list[str]] = []
    for step in reversed(steps):
        last = (names_in([*step.args, *step.kwargs.values()]) | set(step.out)) - used
        dead.append(sorted(last))
        used |= last
    return dead[::-1]
