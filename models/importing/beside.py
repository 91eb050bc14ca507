"""Decoders and preludes of imports, stored in the checkpoint along with the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from models.conditions import NamedConditions
from models.decoder import Decoder, DecoderConfig
from models.forms.rows import batching_pays
from models.importing.data_sizes import data_sizes, tried
from models.importing.files import ForeignError
from models.importing.programs import ReadFunction, read_function
from models.messages import explain, first_line
from models.noise import noise
from models.prelude import Prelude, PreludeCard
from models.program.function import Function, FunctionConfig
from models.shapes import Axis, Shape, free_axes, sized, typical

_TRIAL_ROWS = 2
_FAILURES = RuntimeError, ValueError, TypeError, IndexError


def make_decoder(
    event_shape: Shape, dtype: torch.dtype, wanted: Mapping[str, Any], axes: Mapping[str, Axis] | None = None
) -> tuple[Decoder, list[str]]:
    """Make the decoder of an import; return it with lines for the user.

    Args:
        event_shape: shape of one state, with names for its free axes.
        dtype: dtype of states.
        wanted: `data_shape` and `clip`; `mean` and `scale`, numbers or arrays, one for all, one for each channel, or
            spread over the shape of a state (data = state * scale + mean); or `program`, the archive of a function from
            states to data.
        axes: the sizes allowed for its free axes.

    Raises:
        ForeignError: the options do not fit the states or each other; the program cannot be read, fails, or mixes rows.
    """
    wanted = dict(wanted)
    mean, scale, program = (wanted.pop(name, None) for name in ("mean", "scale", "program"))
    try:
        if program is not None:
            if mean is not None or scale is not None:
                raise ForeignError(
                    "--decoder-mean and --decoder-scale were given with --decoder; scale states inside that program"
                )
            return _from_program(Path(program), event_shape, dtype, wanted, axes or {})
        if mean is not None or scale is not None:
            factors = _spread(1.0 if scale is None else scale, "--decoder-scale", event_shape, dtype)
            shift = _spread(0.0 if mean is None else mean, "--decoder-mean", event_shape, dtype)
            if (factors == 0).any():
                raise ForeignError("--decoder-scale has zeros, so decoding could not be undone; give nonzero numbers")
            affine = Decoder.affine(factors, shift, event_shape=tuple(event_shape), **wanted)
            return affine, ["decoder: data = state * scale + mean"]
        fields = {"kind": "identity", "event_shape": event_shape, "data_shape": event_shape, **wanted}
        return Decoder(DecoderConfig.model_validate(fields)), []
    except ValueError as error:
        raise ForeignError(f"--data-shape or --clip: {first_line(error)}") from None


def _spread(given: Any, option: str, event_shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return numbers in the shape of one state, with size 1 along its free axes.

    Users give one number for all, one for each channel, or an array with as many dimensions as a state, with size 1
    along axes where it does not vary.
    """
    values = torch.as_tensor(given, dtype=dtype)
    if not values.isfinite().all():
        raise ForeignError(f"{option} holds numbers that are not finite")
    if values.ndim == len(event_shape) + 1 and len(values) == 1:  # statistics with an axis for rows
        values = values[0]
    found, across = list(values.shape), tuple(1 if isinstance(size, str) else size for size in event_shape)
    if values.numel() == 1:
        values = values.reshape(())
    elif values.ndim == 1:  # channels
        values = values.reshape(-1, *[1] * (len(event_shape) - 1))
    for size, of_state in zip(values.shape, event_shape, strict=False):
        if values.ndim == len(event_shape) and size > 1 and isinstance(of_state, str):
            raise ForeignError(
                f"{option} has the shape {found}, with {size} numbers along the axis {of_state}, which is free: its "
                f"size differs between requests; give one number, or the shape {list(across)}"
            )
    if values.ndim and not (
        values.ndim == len(across) and all(size in (1, most) for size, most in zip(values.shape, across, strict=True))
    ):
        channels = "" if isinstance(event_shape[0], str) else f" {event_shape[0]} for the channels,"
        raise ForeignError(
            f"{option} has the shape {found}; give one number,{channels} or the shape of a state, {list(across)}, with "
            "1 along any axis where they do not vary"
        )
    return values.expand(across).contiguous()


def _from_program(
    file: Path, event_shape: Shape, dtype: torch.dtype, wanted: Mapping[str, Any], axes: Mapping[str, Axis]
) -> tuple[Decoder, list[str]]:
    found = read_function(file, ["data"], ["x"])
    _check_states(file, found, event_shape, axes)
    mine = {axis: axes[axis] for axis in free_axes(event_shape)}
    try:
        config = FunctionConfig.model_validate(found.config)
        data = found.shapes["data"]
        if not data:
            raise ForeignError(f"{file}: returns data of the shape {data}; each sample must have its own data")
        if None in data:
            data = data_sizes(file, _shapes_by(config, found.tensors, event_shape, dtype), mine)
        shape = tuple(wanted.get("data_shape", data))
        if not _batch_pays(config, found.tensors, {"x": (event_shape, dtype)}, mine):
            config = config.model_copy(update={"alone_on_cpu": True})
        decoder = Decoder.from_program(config, found.tensors, tuple(event_shape), shape, wanted.get("clip"))
    except ValidationError as error:
        raise ForeignError(f"{file}: {explain(error)}") from None
    except _FAILURES as error:
        raise ForeignError(f"{file}: cannot be run: {first_line(error)}") from None
    decoder.eval().requires_grad_(False)
    try:
        with torch.no_grad():
            shown = [sized(event_shape, sizes) for sizes in tried(mine)]
            decoded = [decoder.decode(noise(0, 0, _TRIAL_ROWS, shape, dtype)) for shape in shown]
        mixing = decoder.find_mixing(dtype, sizes=typical(mine))
    except _FAILURES as error:
        raise ForeignError(f"{file}: cannot be run: {first_line(error)}") from None
    if not all(each.isfinite().all() for each in decoded):
        raise ForeignError(f"{file}: returns numbers that are not finite for starting noise")
    if mixing is not None:
        raise ForeignError(f"{file}: {mixing}")
    return decoder, [f"decoder: {len(found.config['steps'])} steps, data of the shape {list(decoder.data_shape)}"]


def _check_states(file: Path, found: ReadFunction, event_shape: Shape, axes: Mapping[str, Axis]) -> None:
    """Refuse a program that does not take every state of the network."""
    shape = found.shapes["x"]
    if len(shape) != len(event_shape) or any(a not in (None, b) for a, b in zip(shape, event_shape, strict=True)):
        taken = [size or name for size, name in zip(shape, found.free, strict=True)]
        raise ForeignError(f"{file}: takes states of the shape {taken}, but the network's have {list(event_shape)}")
    same: dict[str, int | str] = {}
    for name, size in zip(found.free, event_shape, strict=True):
        if name is None:
            continue
        if same.setdefault(name, size) != size:
            raise ForeignError(
                f"{file}: takes states with an axis of the same size as another, where the network's have "
                f"{list(event_shape)}; export it with a separate size (Dim) for each"
            )
        of_program = found.axes[name]
        of_states = axes[size] if isinstance(size, str) else Axis(min=size, max=size)
        if not of_program.takes(of_states):
            what = f"the axis {size}" if isinstance(size, str) else "that axis"
            raise ForeignError(
                f"{file}: takes {of_program.describe()} where {what} of the network's states is "
                f"{of_states.describe()}; export it with wider bounds, or narrow the axis with --axes"
            )


def _function(config: FunctionConfig, tensors: Mapping[str, Tensor]) -> Function:
    with torch.device("meta"):
        program = Function(config)
    program.load_state_dict({f"data_{name}": tensor for name, tensor in tensors.items()}, assign=True)
    return program


def _batch_pays(
    config: FunctionConfig,
    tensors: Mapping[str, Tensor],
    inputs: Mapping[str, tuple[Shape, torch.dtype]],
    axes: Mapping[str, Axis],
) -> bool:
    """Return whether a CPU should call a program with several rows (see `models.forms.rows.batching_pays`)."""
    if config.rows != (1, None):
        return True
    program, sizes = _function(config, tensors), {axis: bounds.middle for axis, bounds in axes.items()}
    free = any(free_axes(shape) for shape, _ in inputs.values())

    def trial(rows: int) -> list[Tensor]:
        return [torch.empty((rows, *sized(shape, sizes)), dtype=kind, device="meta") for shape, kind in inputs.values()]

    def function(*given: Tensor) -> Tensor:
        return next(iter(program(dict(zip(inputs, given, strict=True))).values()))

    return batching_pays(function, trial, free)


def _shapes_by(
    config: FunctionConfig, tensors: Mapping[str, Tensor], event_shape: Shape, dtype: torch.dtype
) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """Return a function from sizes of the free axes of states to the shape of a program's data."""
    program = _function(config, tensors)

    def shape(sizes: Mapping[str, int]) -> tuple[int, ...]:
        with torch.no_grad():
            return tuple(program({"x": noise(0, 0, _TRIAL_ROWS, sized(event_shape, sizes), dtype)})["data"].shape[1:])

    return shape


@dataclass(frozen=True)
class PreludeSource:
    """A prelude's archive and the names of its arguments and results.

    Attributes:
        file: the archive.
        inputs: the names of its arguments in order; None takes those of the exported module.
        outputs: the names of its results in order; None takes those of the network's conditions that the prelude does
            not take itself, in order.
    """

    file: Path
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None

    def read(self, arguments: Sequence[str], conditions: Mapping[str, Mapping[str, Any]]) -> ReadPrelude:
        """Read the archive.

        Args:
            arguments: the names of the network's arguments, in order.
            conditions: fields that programs cannot declare themselves, by name.

        Raises:
            ForeignError: it cannot be read, or does not fit the network's arguments.
        """
        taken = [name for name in arguments if name not in ("x", "t")]
        if not taken:
            raise ForeignError("--prelude needs the names of the network's arguments: --inputs x,t,...")
        found = read_function(self.file, None, self.inputs, conditions)
        outputs = self.outputs or [name for name in taken if name not in found.conditions]
        if len(outputs) != len(found.config["outputs"]) or not set(outputs) <= set(taken):
            raise ForeignError(
                f"{self.file}: returns {len(found.config['outputs'])} tensors, and the network takes "
                f"{', '.join(taken)}; name the results in order with --prelude-outputs"
            )
        values = found.config["outputs"].values()
        config = found.config | {"outputs": dict(zip(outputs, values, strict=True))}
        return ReadPrelude(self.file, found, config, frozenset(taken))


@dataclass(frozen=True)
class ReadPrelude:
    """A prelude that was read before its network.

    Attributes:
        file: its archive.
        found: its content.
        config: the config of its program.
        taken: the network's conditions.
    """

    file: Path
    found: ReadFunction
    config: dict[str, Any]
    taken: frozenset[str]

    @property
    def report(self) -> str:
        """A line for the user."""
        inputs, outputs = ", ".join(self.found.conditions), ", ".join(self.config["outputs"])
        unused = f"; nothing depends on {', '.join(self.found.unused)}" if self.found.unused else ""
        return f"prelude: {len(self.config['steps'])} steps, from ({inputs}) to ({outputs}){unused}"

    def left(self, conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Return the declared conditions without those that only the prelude takes."""
        return {
            name: entry for name, entry in conditions.items() if name in self.taken or name not in self.found.conditions
        }

    def made_for(self, takes: NamedConditions, dtype: torch.dtype) -> tuple[Prelude, NamedConditions]:
        """Return the prelude for a network, and the conditions that requests give.

        Args:
            takes: the conditions that the network takes.
            dtype: dtype of its states.

        Raises:
            ForeignError: prelude and network do not fit together; the prelude fails on examples, or mixes rows.
        """
        try:
            card = PreludeCard.model_validate({"conditions": self.found.conditions, "program": self.config})
            requested = NamedConditions(card.request_conditions(takes.entries), bounds=takes.bounds)
        except ValidationError as error:
            raise ForeignError(f"{self.file}: {explain(error)}") from None
        except ValueError as error:
            raise ForeignError(f"{self.file}: {error}") from None
        given = {name: (entry.shape, entry.given_to(dtype)) for name, entry in card.conditions.items()}
        if not _batch_pays(card.program, self.found.tensors, given, requested.axes):
            program = card.program.model_copy(update={"alone_on_cpu": True})
            card = card.model_copy(update={"program": program})
        with torch.device("meta"):
            prelude = Prelude(card)
        tensors = {f"program.data_{name}": tensor for name, tensor in self.found.tensors.items()}
        prelude.load_state_dict(tensors, assign=True)
        prelude.eval().requires_grad_(False)
        try:
            with torch.no_grad():
                prelude.call(takes.sized({}), *prelude.examples(requested, _TRIAL_ROWS, dtype))
            mixing = prelude.find_mixing(requested, takes, dtype)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ForeignError(f"{self.file}: cannot be run: {first_line(error)}") from None
        if mixing is not None:
            raise ForeignError(f"{self.file}: {mixing}")
        return prelude, requested
