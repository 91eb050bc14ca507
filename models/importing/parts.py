"""Decoders and preludes of imports: the parts of a model besides its network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from models.conditions import NamedConditions
from models.decoder import Decoder, DecoderConfig
from models.forms.rows import limit_rows
from models.importing.files import ForeignError
from models.importing.programs import ExportedProgram, Stated, read_function
from models.messages import explain, first_line
from models.noise import noise
from models.prelude import Prelude, PreludeCard
from models.program.steps import Function, FunctionConfig
from models.shapes import FreeAxis, Line, Shape, free_axes, sized, typical

_TRIAL_ROWS = 2
_TRIALS = 4  # sizes of each axis at which a program is run


def make_decoder(
    event_shape: Shape, dtype: torch.dtype, options: Mapping[str, Any], axes: Mapping[str, FreeAxis] | None = None
) -> tuple[Decoder, list[str]]:
    """Make the decoder of an import; return it with lines for the user.

    Args:
        event_shape: shape of one state, with names for its free axes.
        dtype: dtype of states.
        options: `data_shape` and `clip`; `mean` and `scale`, numbers or arrays, one for all, one for each channel, or
            spread over the shape of a state (data = state * scale + mean); or `program`, the archive of a function from
            states to data.
        axes: the sizes allowed for its free axes.

    Raises:
        ForeignError: the options do not fit the states or each other; the program cannot be read, fails, or mixes rows.
    """
    shape_and_clip = dict(options)
    mean, scale, program = (shape_and_clip.pop(name, None) for name in ("mean", "scale", "program"))
    try:
        if program is not None:
            if mean is not None or scale is not None:
                raise ForeignError(
                    "--decoder-mean and --decoder-scale were given with --decoder; scale states inside that program"
                )
            return _from_program(Path(program), event_shape, dtype, shape_and_clip, axes or {})
        if mean is not None or scale is not None:
            factors = _spread(1.0 if scale is None else scale, "--decoder-scale", event_shape, dtype)
            shift = _spread(0.0 if mean is None else mean, "--decoder-mean", event_shape, dtype)
            if (factors == 0).any():
                raise ForeignError("--decoder-scale has zeros, so decoding could not be undone; give nonzero numbers")
            affine = Decoder.affine(factors, shift, event_shape=tuple(event_shape), **shape_and_clip)
            return affine, ["decoder: data = state * scale + mean"]
        fields = {"kind": "identity", "event_shape": event_shape, "data_shape": event_shape, **shape_and_clip}
        return Decoder(DecoderConfig.model_validate(fields)), []
    except ValueError as error:
        raise ForeignError(f"--data-shape or --clip: {first_line(error)}") from None


def _spread(numbers: Any, option: str, event_shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return numbers in the shape of one state, with size 1 along its free axes.

    Users give one number for all, one for each channel, or an array with as many dimensions as a state, with size 1
    along axes where it does not vary.
    """
    values = torch.as_tensor(numbers, dtype=dtype)
    if not values.isfinite().all():
        raise ForeignError(f"{option} holds numbers that are not finite")
    if values.ndim == len(event_shape) + 1 and len(values) == 1:  # statistics with an axis for rows
        values = values[0]
    shape, across = list(values.shape), tuple(1 if isinstance(size, str) else size for size in event_shape)
    if values.numel() == 1:
        values = values.reshape(())
    elif values.ndim == 1:  # channels
        values = values.reshape(-1, *[1] * (len(event_shape) - 1))
    for size, of_state in zip(values.shape, event_shape, strict=False):
        if values.ndim == len(event_shape) and size > 1 and isinstance(of_state, str):
            raise ForeignError(
                f"{option} has the shape {shape}, with {size} numbers along the axis {of_state}, which is free: its "
                f"size differs between requests; give one number, or the shape {list(across)}"
            )
    if values.ndim and not (
        values.ndim == len(across) and all(size in (1, most) for size, most in zip(values.shape, across, strict=True))
    ):
        channels = "" if isinstance(event_shape[0], str) else f" {event_shape[0]} for the channels,"
        raise ForeignError(
            f"{option} has the shape {shape}; give one number,{channels} or the shape of a state, {list(across)}, with "
            "1 along any axis where they do not vary"
        )
    return values.expand(across).contiguous()


def _from_program(
    file: Path, event_shape: Shape, dtype: torch.dtype, options: Mapping[str, Any], axes: Mapping[str, FreeAxis]
) -> tuple[Decoder, list[str]]:
    program = read_function(file, ["data"], ["x"])
    _check_states(file, program, event_shape, axes)
    of_states = {axis: axes[axis] for axis in free_axes(event_shape)}
    with _runs(file):
        function = Function.with_tensors(FunctionConfig.model_validate(program.config), program.tensors)
        data: Any = program.results["data"]
        if not data:
            raise ForeignError(f"{file}: returns data of the shape {data}; each sample must have its own data")
        if None in data:

            def shape_at(sizes: Mapping[str, int]) -> tuple[int, ...]:
                x = noise(0, 0, _TRIAL_ROWS, sized(event_shape, sizes), dtype)
                with torch.no_grad():
                    return tuple(function({"x": x})["data"].shape[1:])

            data = data_sizes(file, shape_at, of_states)
        _limit_rows(function, {"x": (event_shape, dtype)}, of_states)
        shape = tuple(options.get("data_shape", data))
        decoder = Decoder.from_program(function, tuple(event_shape), shape, options.get("clip"))
    decoder.eval().requires_grad_(False)
    with _runs(file):
        for sizes in trial_sizes(of_states):
            with torch.no_grad():
                decoded = decoder.decode(noise(0, 0, _TRIAL_ROWS, sized(event_shape, sizes), dtype))
            if not decoded.isfinite().all():
                raise ForeignError(f"{file}: returns numbers that are not finite for starting noise")
        mixing = decoder.find_mixing(dtype, sizes=typical(of_states))
    if mixing is not None:
        raise ForeignError(f"{file}: {mixing}")
    return decoder, [f"decoder: {len(program.config['steps'])} steps, data of the shape {list(decoder.data_shape)}"]


def trial_sizes(axes: Mapping[str, FreeAxis]) -> Iterator[dict[str, int]]:
    """Yield sizes to run a program at: small ones, and each axis in turn a little larger."""
    base = typical(axes)
    yield base
    for name, axis in axes.items():
        allowed = range(axis.smallest, axis.max + 1, axis.multiple)
        first = max(0, min(allowed.index(axis.typical), len(allowed) - _TRIALS))
        yield from ({**base, name: size} for size in allowed[first : first + _TRIALS] if size != base[name])


def data_sizes(
    file: Path, shape_at: Callable[[Mapping[str, int]], tuple[int, ...]], axes: Mapping[str, FreeAxis]
) -> Shape:
    """Return the shape of one row of data, in which a size may be a multiple of one axis plus or minus a constant.

    Args:
        file: the program, for messages.
        shape_at: sizes -> the shape of one row of data at these sizes.
        axes: the allowed sizes of the free axes of states.

    Raises:
        ForeignError: a size depends on the axes in another way. Errors raised by the program propagate.
    """
    trials = [(sizes, shape_at(sizes)) for sizes in trial_sizes(axes)]
    first = trials[0][1]
    if any(len(shape) != len(first) for _, shape in trials):
        raise ForeignError(f"{file}: returns data with a number of axes that depends on their sizes")
    data: list[int | str] = []
    for place, size in enumerate(first):
        measured = [(sizes, shape[place]) for sizes, shape in trials]
        line = _line(measured)
        if any((size if line is None else line.of(sizes)) != at for sizes, at in measured):
            listed = "; ".join(
                f"{at} at {', '.join(f'{axis} = {value}' for axis, value in sizes.items())}" for sizes, at in measured
            )
            raise ForeignError(
                f"{file}: dimension {place + 1} of its data is {listed}: it must be a multiple of one axis, plus or "
                "minus a constant, as in 256*T or 2*T-1"
            )
        data.append(size if line is None else str(line))
    return tuple(data)


def _line(measured: list[tuple[dict[str, int], int]]) -> Line | None:
    """Return the line through the first two distinct sizes of data; None if all are equal."""
    base, size = measured[0]
    for sizes, larger in measured:
        for axis, at in sizes.items():
            times = (larger - size) // (at - base[axis]) if at != base[axis] else 0
            if times > 0:
                return Line(axis, times, size - times * base[axis])
    return None


@contextmanager
def _runs(file: Path) -> Iterator[None]:
    """Turn errors of a program that cannot be run into those of its file."""
    try:
        yield
    except ValidationError as error:
        raise ForeignError(f"{file}: {explain(error)}") from None
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ForeignError(f"{file}: cannot be run: {first_line(error)}") from None


def _check_states(file: Path, program: ExportedProgram, event_shape: Shape, axes: Mapping[str, FreeAxis]) -> None:
    """Refuse a program that does not take every state of the network."""
    pairs = list(zip(program.states, event_shape, strict=False))
    if len(program.states) != len(event_shape) or any(isinstance(a, int) and a != b for a, b in pairs):
        raise ForeignError(
            f"{file}: takes states of the shape {list(program.states)}, but the network's have {list(event_shape)}"
        )
    equal: dict[str, int | str] = {}
    for name, size in pairs:
        if isinstance(name, int):
            continue
        if equal.setdefault(name, size) != size:
            raise ForeignError(
                f"{file}: takes states with an axis of the same size as another, where the network's have "
                f"{list(event_shape)}; export it with a separate size (Dim) for each"
            )
        of_program = program.axes[name]
        of_states = axes[size] if isinstance(size, str) else FreeAxis(min=size, max=size)
        if not of_program.takes(of_states):
            what = f"the axis {size}" if isinstance(size, str) else "that axis"
            raise ForeignError(
                f"{file}: takes {of_program.describe()} where {what} of the network's states is "
                f"{of_states.describe()}; export it with wider bounds, or narrow the axis with --axes"
            )


def _limit_rows(
    function: Function, inputs: Mapping[str, tuple[Shape, torch.dtype]], axes: Mapping[str, FreeAxis]
) -> None:
    def call(*arguments: Tensor) -> Tensor:
        return next(iter(function(dict(zip(inputs, arguments, strict=True))).values()))

    limit_rows(function, call, list(inputs.values()), axes)


def make_prelude(
    file: Path,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    arguments: Sequence[str],
    conditions: Stated,
    takes: NamedConditions | None,
    dtype: torch.dtype,
) -> tuple[Prelude, NamedConditions, str]:
    """Return the prelude of a network, the conditions that requests give, and a line for the user.

    Args:
        file: the archive.
        inputs: the names of its arguments in order; None takes those of the exported module.
        outputs: the names of its results in order; None takes those of the network's conditions that the prelude does
            not take itself, in order.
        arguments: the names of the network's arguments, in order.
        conditions: fields that programs cannot declare themselves, by name.
        takes: the conditions that the network takes.
        dtype: dtype of its states.

    Raises:
        ForeignError: it cannot be read, or does not fit the network; it fails on examples, or mixes rows.
    """
    if takes is None:
        raise ForeignError(f"{file}: the network takes no conditions, so a prelude has none to make")
    of_network = [name for name in arguments if name in takes.entries]
    program = read_function(file, None, inputs, conditions)
    if unknown := sorted(conditions.keys() - {*of_network, *program.conditions}):
        raise ForeignError(
            f"--conditions names {unknown[0]!r}; the conditions among --inputs are {', '.join(of_network)}, and "
            f"{file} takes {', '.join(program.conditions)}"
        )
    values = program.config["outputs"].values()
    outputs = outputs or [name for name in of_network if name not in program.conditions]
    if len(outputs) != len(values) or not set(outputs) <= set(of_network):
        raise ForeignError(
            f"{file}: returns {len(values)} tensors, and the network takes {', '.join(of_network)}; name the "
            "results in order with --prelude-outputs"
        )
    config = program.config | {"outputs": dict(zip(outputs, values, strict=True))}
    try:
        card = PreludeCard.model_validate({"conditions": program.conditions, "program": config})
        requested = NamedConditions(card.request_conditions(takes.entries), bounds=takes.bounds)
    except ValidationError as error:
        raise ForeignError(f"{file}: {explain(error)}") from None
    except ValueError as error:
        raise ForeignError(f"{file}: {error}") from None
    function = Function.with_tensors(card.program, program.tensors)
    shapes = {name: (entry.shape, entry.network_dtype(dtype)) for name, entry in card.conditions.items()}
    _limit_rows(function, shapes, requested.axes)
    prelude = Prelude(card.model_copy(update={"program": function.config}), function)
    prelude.eval().requires_grad_(False)
    with _runs(file):
        with torch.no_grad():
            prelude.call(takes.sized({}), *prelude.examples(requested, _TRIAL_ROWS, dtype))
        mixing = prelude.find_mixing(requested, takes, dtype)
    if mixing is not None:
        raise ForeignError(f"{file}: {mixing}")
    unused = f"; nothing depends on {', '.join(program.unused)}" if program.unused else ""
    names = f"({', '.join(program.conditions)}) to ({', '.join(prelude.outputs)})"
    return prelude, requested, f"prelude: {len(program.config['steps'])} steps, from {names}{unused}"
