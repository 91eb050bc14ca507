"""Steps: a program as a list of ATen operations, checked once and then run one by one.

Programs come from `torch.export` (see `models.importing.programs`). The card stores the steps as plain JSON, the
weights file their tensors. torch's own loader, which can be made to unpickle and to evaluate text, is not used.

Before a program first computes with inputs of some shapes, it runs on tensors without numbers, so that one whose
results would not fit into memory fails before they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self, cast

import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from models.conditions import DTYPES
from models.frozen import Frozen, Sparse
from models.messages import first_line
from models.program.aten import operation
from models.velocity import VelocityError, rows_of

CAST_DTYPES = {**DTYPES, "complex64": torch.complex64, "complex128": torch.complex128}
"""What steps may cast to; tensors, inputs and results are never complex."""
MAX_STEPS = 50_000
_UNLIKELY = 1 << 40  # numbers of a tensor, if it were not empty
MAX_BYTES = 4 << 30
"""The most bytes of results that a program holds at one time, its own tensors not counted."""

FEW, MANY = 4, 16
"""Products of a multiple of so many rows have rows with the same bits, with one thread of torch and with several."""
_LARGE = 1 << 20  # numbers of weights whose reading takes the time
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

Dtypes = Mapping[str, torch.dtype]

Values = Mapping[str | tuple[str, ...], Any]
"""The values of a program by their names, dtypes to cast to by `("dtype", name)`, and the device of its inputs."""

_DEVICE = ("device",)

_CONSTANTS: dict[str, dict[str, Any]] = {
    "format": {
        "contiguous": torch.contiguous_format,
        "preserve": torch.preserve_format,
        "channels_last": torch.channels_last,
    },
    "number": {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan},
}
"""Arguments by the kind and the content of their objects."""
_FAULTS = (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, NotImplementedError, AssertionError)
"""What torch raises for arguments that do not fit, depending on who checks them."""

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

    @property
    def uses(self) -> set[str]:
        """The names of the values that it takes; raises a ValueError for an object of an unknown kind."""
        return names_in([*self.args, *self.kwargs.values()])


class StepsConfig(Sparse):
    """The steps of a program and its tensors.

    Attributes:
        tensors: weights and constants by name.
        steps: the steps in order; each uses only values already computed.
        rows: minimum and maximum number of rows per call; None for no limit.
        cpu_rows: the most rows per call on a CPU, as a row costs hardly less in a larger one; None for no limit.
    """

    unwritten = ("rows", "cpu_rows")

    tensors: dict[str, TensorCard]
    steps: tuple[Step, ...] = Field(max_length=MAX_STEPS)
    rows: RowLimits = (1, None)
    cpu_rows: int | None = Field(default=None, ge=1)

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
            except ValueError as error:
                raise ValueError(f"step {number}: {error}") from None
            arguments = [*step.args, *step.kwargs.values()]
            if step.op.startswith("_operator.") and not all(isinstance(a, int | float | dict) for a in arguments):
                raise ValueError(f"step {number} ({step.op}) takes numbers only")
            if unknown := step.uses - values:
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

    @classmethod
    def with_tensors(cls, config: Any, tensors: Mapping[str, Tensor]) -> Self:
        """Make the module of a config with the program's tensors by name, which are not copied."""
        with torch.device("meta"):
            module = cls(config)
        module.load_state_dict({f"data_{name}": tensor for name, tensor in tensors.items()}, assign=True)
        return module

    def add_steps(self, config: StepsConfig, outputs: Sequence[str]) -> None:
        """Make a buffer for each tensor, and prepare the steps.

        Args:
            config: the steps.
            outputs: the names of the results.
        """
        for name, tensor in config.tensors.items():
            # The prefix keeps the names apart from the module's own attributes.
            self.register_buffer(f"data_{name}", torch.zeros(tensor.shape, dtype=DTYPES[tensor.dtype]))
        self._results = outputs
        last = _last_uses(config.steps, outputs)
        self._calls = [_Call(step, dead) for step, dead in zip(config.steps, last, strict=True)]
        self._fitting_rows: dict[tuple[tuple[int, ...], ...], int] = {}  # by the shapes of a row of each input

    @property
    def rows(self) -> RowLimits:
        """The minimum and maximum number of rows per call; None for no limit."""
        return self.config.rows

    @property
    def cpu_rows(self) -> int | None:
        """The most rows per call on a CPU; None for no limit."""
        return self.config.cpu_rows

    def run(self, inputs: Mapping[str, Tensor], dtypes: Dtypes = CAST_DTYPES, multiple: int = 1) -> tuple[Tensor, ...]:
        """Return the results for inputs (rows, ...) by name, at least one row.

        Too many rows for one call are split over several, and too few are padded with copies of the first.

        Args:
            inputs: the inputs by name.
            dtypes: the dtypes that steps cast to, by their names.
            multiple: rows of products are filled to a multiple of this; unless it is 1, bits depend less on the number
                of rows (see `_EVEN`).

        Raises:
            VelocityError: a step fails.
        """
        x = next(iter(inputs.values()))
        (least, most), rows = rows_of(self, x.device), x.shape[0]  # `len` would fix the rows of an export
        if most is not None and rows > most:
            parts = zip(*(tensor.split(most) for tensor in inputs.values()), strict=True)
            results = [self.run(dict(zip(inputs, part, strict=True)), dtypes, multiple) for part in parts]
            return tuple(torch.cat(result) for result in zip(*results, strict=True))
        if rows < least:
            inputs = {name: torch.cat((a, a[:1].expand(least - rows, *a.shape[1:]))) for name, a in inputs.items()}
        self._check_memory(inputs, dtypes)
        results = self._run(inputs, dtypes, multiple)
        return tuple(result[:rows] for result in results) if rows < least else results

    def _check_memory(self, inputs: Mapping[str, Tensor], dtypes: Dtypes) -> None:
        """Raise a VelocityError if the results of the steps do not fit into memory; more rows are checked once."""
        rows, *_ = sizes = [size for tensor in inputs.values() for size in tensor.shape]
        row = tuple(tensor.shape[1:] for tensor in inputs.values())
        if all(isinstance(size, int) for size in sizes) and rows > self._fitting_rows.get(
            row, 0
        ):  # no export's symbols
            shapes = {name: torch.empty(a.shape, dtype=a.dtype, device="meta") for name, a in inputs.items()}
            with _disable_current_modes():  # whoever counts operations counts those of the call alone
                self._run(shapes, dtypes)
            self._fitting_rows[row] = rows

    def _run(self, inputs: Mapping[str, Tensor], dtypes: Dtypes, multiple: int = 1) -> tuple[Tensor, ...]:
        device, tensors = next(iter(inputs.values())).device, cast("dict[str, Tensor]", self._buffers)
        sizing, held = device.type == "meta", dict[str, int]()
        values: dict[Any, Any] = {
            _DEVICE: device,
            **{("dtype", name): dtype for name, dtype in dtypes.items()},
            **inputs,
        }
        for name in self.config.tensors:
            tensor = tensors[f"data_{name}"]
            values[name] = torch.empty_like(tensor, device="meta") if sizing else tensor
        for call in self._calls:
            arguments = call.arguments.copy()
            for place, get in call.references:
                arguments[place] = get(values)
            named = call.named | {name: get(values) for name, get in call.named_references}
            try:
                if multiple > 1 and call.even is not None and not sizing:
                    out = call.even(multiple, *arguments, **named)
                else:
                    out = call.function(*arguments, **named)
            except _FAULTS as error:
                step = call.step
                name, why = step.out[0] if step.out else step.op, first_line(error)
                if "index out of range" in why:
                    why += "; if it is of a label, declare the number of labels as `classes` of that condition"
                raise VelocityError(f"step {name} ({step.op}): {why}") from error
            values.update(zip(call.step.out, (out,) if call.step.single else out, strict=True))
            if sizing and not call.is_view:
                held.update((name, getattr(values[name], "nbytes", 0)) for name in call.step.out)
                if (total := sum(held.values())) > MAX_BYTES:
                    raise VelocityError(
                        f"step {call.step.out[0]} ({call.step.op}) would bring the program's results to "
                        f"{total >> 20} MiB for {next(iter(inputs.values())).shape[0]} rows; {MAX_BYTES >> 20} MiB are "
                        "allowed"
                    )
            for name in call.dead:
                values.pop(name)
                held.pop(name, None)
        return tuple(values[name] for name in self._results)


class FunctionConfig(StepsConfig):
    """A function of tensors as a list of steps; row i of each result comes from row i of each input alone.

    Attributes:
        inputs: the dtype of each input by its name; steps know it as `c_name`.
        outputs: name of each result -> name of its value in the steps.
    """

    inputs: dict[str, str] = Field(min_length=1, max_length=64)
    outputs: dict[str, str] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, dtype in self.inputs.items():
            if dtype not in DTYPES:
                raise ValueError(f"input {name[:60]!r} is {dtype[:60]!r}, which programs cannot take")
        self.check_steps({f"c_{name}" for name in self.inputs}, tuple(self.outputs.values()))
        return self

    def brief(self) -> dict[str, Any]:
        """Return a summary for readers, with counts in place of thousands of steps."""
        return self.model_dump(mode="json") | {"steps": len(self.steps), "tensors": len(self.tensors)}


class Function(Stepwise):
    """The function of a program."""

    config: FunctionConfig

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__()
        self.config = config
        self.add_steps(config, tuple(config.outputs.values()))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name for inputs (rows, ...) by name; inputs are cast to their declared dtypes.

        Raises:
            VelocityError: a step fails.
        """
        cast = {f"c_{name}": inputs[name].to(DTYPES[dtype]) for name, dtype in self.config.inputs.items()}
        return dict(zip(self.config.outputs, self.run(cast), strict=True))


class _Call:
    """A step, ready to be run.

    Attributes:
        step: the step.
        arguments, named: its arguments, as far as they are the same in each call.
        references, named_references: the places of the others, and functions from the values to each of them.
        dead: the values that no later step uses.
        is_view: whether its results are views of its arguments.
        even: the function in the form in which rows have the same bits in any number; None if it has none. Its first
            argument is the multiple to which rows of products are filled.
    """

    def __init__(self, step: Step, dead: Collection[str]) -> None:
        self.step, self.dead, self.function = step, dead, operation(step.op)
        self.is_view = getattr(self.function, "is_view", False)
        make, of = _EVEN.get(step.op, (None, 0))
        self.even = None if make is None else make(self.function, of)
        positional = [_argument(value) for value in step.args]
        named = {name: _argument(value) for name, value in step.kwargs.items()}
        schema = getattr(self.function, "_schema", None)
        if schema and any(argument.name == "device" and argument.kwarg_only for argument in schema.arguments):
            named["device"] = None, itemgetter(_DEVICE)  # or it would choose one itself
        self.arguments = [fixed for fixed, _ in positional]
        self.references = [(place, get) for place, (_, get) in enumerate(positional) if get is not None]
        self.named = {name: fixed for name, (fixed, _) in named.items()}
        self.named_references = [(name, get) for name, (_, get) in named.items() if get is not None]


def _multiplied(function: Callable[..., Tensor], place: int) -> Callable[..., Tensor]:
    """Return a product whose factor at this place is filled with zeros to a multiple of some rows.

    Kernels compute products of few rows by other instructions, and so with other bits, than those of many. A network
    with products of one row a sample (of an embedding of times, say) would otherwise pay for whole rows of padding.
    Large weights go to oneDNN, which reads them hardly slower for two rows than others for one. Its operation is
    private to torch: a build without it computes these products like all others. Rows are tested either way.
    """

    def product(multiple: int, *arguments: Any, **named: Any) -> Tensor:
        factor, weight = arguments[place], arguments[place + 1]
        shape = factor.shape[:-1]
        large = not place and not named and _is_plain(factor) and weight.numel() >= _LARGE and weight.is_contiguous()
        large = large and len(arguments) == 3 and multiple == FEW
        missing = max(0, 2 - shape.numel()) if large else -shape.numel() % multiple
        if missing:
            factor = nn.functional.pad(factor.reshape(-1, factor.shape[-1]), (0, 0, 0, missing))
        if large:
            whole = torch.ops.mkldnn._linear_pointwise(factor, *arguments[1:], "none", [], "")
        else:
            whole = function(*arguments[:place], factor, *arguments[place + 1 :], **named)
        return whole[:-missing].reshape(*shape, whole.shape[-1]) if missing else whole

    return product


def _is_plain(x: Tensor) -> bool:
    """Whether kernels of oneDNN, which have no derivatives here and not every build of torch has, take a tensor."""
    return x.dtype is torch.float32 and x.device.type == "cpu" and not x.requires_grad and _HAS_ONEDNN


def _convolved(function: Callable[..., Tensor], dimensions: int) -> Callable[..., Tensor]:
    """Return a convolution of float32 by oneDNN, whatever the number of rows: torch has another kernel for few."""

    def convolution(multiple: int, x: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
        if not _is_plain(x) or named or not x.numel() or x.ndim != dimensions + 2:
            return function(x, weight, *more, **named)
        bias, stride, padding, dilation, groups = (*more, *(None, 1, 0, 1, 1)[len(more) :])
        lengths = [length if isinstance(length, list) else [length] for length in (padding, stride, dilation)]
        lengths = [length * dimensions if len(length) == 1 else length for length in lengths]
        if dimensions == 1:
            x, weight = x.unsqueeze(2), weight.unsqueeze(2)
            lengths = [[neutral, *length] for neutral, length in zip((0, 1, 1), lengths, strict=True)]
        v = torch.ops.aten.mkldnn_convolution.default(x.contiguous(), weight, bias, *lengths, groups)
        return v.squeeze(2) if dimensions == 1 else v

    return convolution


_EVEN: dict[str, tuple[Callable[..., Any], int]] = {
    "torch.ops.aten.linear.default": (_multiplied, 0),
    "torch.ops.aten.mm.default": (_multiplied, 0),
    "torch.ops.aten.addmm.default": (_multiplied, 1),
    "torch.ops.aten.conv1d.default": (_convolved, 1),
    "torch.ops.aten.conv2d.default": (_convolved, 2),
}
"""Operations whose bits depend on the number of rows -> how a form of them is made in which they do not."""


def _argument(value: Any) -> tuple[Any, Callable[[Values], Any] | None]:
    """Return an argument that is the same in each call, or None and a function from the values to it."""
    if isinstance(value, list | tuple):
        parts = [_argument(item) for item in value]
        if all(get is None for _, get in parts):
            return [fixed for fixed, _ in parts], None
        return None, lambda values: [fixed if get is None else get(values) for fixed, get in parts]
    if not isinstance(value, dict):
        return value, None
    [(kind, content)] = value.items()
    if kind == "complex":
        return complex(*content), None
    if kind in _CONSTANTS:
        return _CONSTANTS[kind][content], None
    keys = {"value": content, "dtype": ("dtype", content), "device": _DEVICE}
    return None, itemgetter(keys[kind])


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
    names = {"dtype": CAST_DTYPES, **_CONSTANTS}.get(kind, {})
    if kind != "device" and not (isinstance(content, str) and content in names):
        raise ValueError(f"an argument is {str(value)[:80]}; use value, dtype, format, number, complex or device")
    return set()


def _last_uses(steps: Sequence[Step], outputs: Collection[str]) -> list[set[str]]:
    """Return, for each step, the values that no later step uses, so that their memory can be freed."""
    used = set(outputs)
    dead: list[set[str]] = []
    for step in reversed(steps):
        dead.append((step.uses | set(step.out)) - used)
        used |= dead[-1]
    return dead[::-1]
