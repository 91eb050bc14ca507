"""Decoders and preludes of imports, which go into a checkpoint with the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from models.decoder import Decoder, DecoderConfig
from models.importing.files import ForeignError
from models.importing.programs import ReadFunction, read_function
from models.messages import explain, first_line
from models.named_conditions import NamedConditions
from models.noise import noise
from models.prelude import Prelude, PreludeCard
from models.program.function import FunctionConfig
from models.shapes import Shape, free_axes, sized

_TRIAL_ROWS = 2


def make_decoder(event_shape: Shape, dtype: torch.dtype, wanted: Mapping[str, Any]) -> tuple[Decoder, list[str]]:
    """The decoder of an import, and lines for the user.

    Args:
        event_shape: shape of one state; with free axes, no program fits.
        dtype: of states.
        wanted: `data_shape` and `clip`; `mean` and `scale`, numbers or arrays, one for all, one for each channel, or
            spread over the shape of a state (data = state * scale + mean); or `program`, the archive of a function from
            states to data.

    Raises:
        ForeignError: they do not fit the states or each other; the program cannot be read, fails, or mixes rows.
    """
    wanted = dict(wanted)
    if (free := free_axes(event_shape)) and "program" in wanted:
        raise ForeignError(
            f"a decoder by a program takes states of one shape, and the axis {free[0]} of these is free; decode what "
            "the service returns"
        )
    mean, scale, program = (wanted.pop(name, None) for name in ("mean", "scale", "program"))
    try:
        if program is not None:
            if mean is not None or scale is not None:
                raise ForeignError(
                    "--decoder-mean and --decoder-scale were given beside --decoder; scale states in that program"
                )
            return _from_program(Path(program), sized(event_shape, {}), dtype, wanted)
        if mean is not None or scale is not None:
            factors = _spread(1.0 if scale is None else scale, "--decoder-scale", event_shape, dtype)
            shift = _spread(0.0 if mean is None else mean, "--decoder-mean", event_shape, dtype)
            if (factors == 0).any():
                raise ForeignError("--decoder-scale holds zeros, which no state could be told from")
            affine = Decoder.affine(factors, shift, event_shape=tuple(event_shape), **wanted)
            return affine, ["decoder: data = state * scale + mean"]
        fields = {"kind": "identity", "event_shape": event_shape, "data_shape": event_shape, **wanted}
        return Decoder(DecoderConfig.model_validate(fields)), []
    except ValueError as error:
        raise ForeignError(f"--data-shape or --clip: {first_line(error)}") from None


def _spread(given: Any, option: str, event_shape: Shape, dtype: torch.dtype) -> Tensor:
    """Numbers of the shape of one state, 1 along its free axes.

    They are given as one for all, as one for each channel, or in as many dimensions as a state has, with a size of 1
    where they are the same along an axis.
    """
    values = torch.as_tensor(given, dtype=dtype)
    if not values.isfinite().all():
        raise ForeignError(f"{option} holds numbers that are not finite")
    found, across = list(values.shape), tuple(1 if isinstance(size, str) else size for size in event_shape)
    if values.numel() == 1:
        values = values.reshape(())
    elif values.ndim == 1:  # channels
        values = values.reshape(-1, *[1] * (len(event_shape) - 1))
    for size, of_state in zip(values.shape, event_shape, strict=False):
        if values.ndim == len(event_shape) and size > 1 and isinstance(of_state, str):
            raise ForeignError(
                f"{option} has the shape {found}, with {size} numbers along the axis {of_state}, which is free: states "
                f"have another size there in each request; give one number, or the shape {list(across)}"
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
    file: Path, event_shape: tuple[int, ...], dtype: torch.dtype, wanted: Mapping[str, Any]
) -> tuple[Decoder, list[str]]:
    found = read_function(file, ["data"], ["x"])
    shape, data = found.shapes["x"], found.shapes["data"]
    if shape != list(event_shape):
        raise ForeignError(f"{file}: takes states of the shape {shape}, and the network's have {list(event_shape)}")
    if not data or None in data:
        raise ForeignError(f"{file}: returns data of the shape {data}; each size must be fixed")
    try:
        decoder = Decoder.from_program(
            FunctionConfig.model_validate(found.config),
            found.tensors,
            event_shape,
            tuple(wanted.get("data_shape", data)),
            wanted.get("clip"),
        )
    except ValidationError as error:
        raise ForeignError(f"{file}: {explain(error)}") from None
    decoder.eval().requires_grad_(False)
    try:
        with torch.no_grad():
            decoded = decoder.decode(noise(0, 0, _TRIAL_ROWS, event_shape, dtype))
        mixing = decoder.find_mixing(dtype)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ForeignError(f"{file}: cannot be run: {first_line(error)}") from None
    if not decoded.isfinite().all():
        raise ForeignError(f"{file}: returns numbers that are not finite for starting noise")
    if mixing is not None:
        raise ForeignError(f"{file}: {mixing}")
    return decoder, [f"decoder: {len(found.config['steps'])} steps, data of the shape {list(decoder.data_shape)}"]


@dataclass(frozen=True)
class PreludeSource:
    """An archive of a prelude.

    Attributes:
        file: the archive.
        inputs: the names of its arguments in their order; None takes those of the exported module.
        outputs: the names of its results in their order; None takes those of the network's conditions that it does not
            take itself, in their order.
    """

    file: Path
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None

    def read(self, arguments: Sequence[str], conditions: Mapping[str, Mapping[str, Any]]) -> ReadPrelude:
        """Read the archive.

        Args:
            arguments: the names of the network's, in their order.
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
                f"{', '.join(taken)}; say with --prelude-outputs which of those each of them is"
            )
        values = found.config["outputs"].values()
        config = found.config | {"outputs": dict(zip(outputs, values, strict=True))}
        return ReadPrelude(self.file, found, config, frozenset(taken))


@dataclass(frozen=True)
class ReadPrelude:
    """A prelude that was read, for a network that was not yet.

    Attributes:
        file: its archive.
        found: its content.
        config: of its program.
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
        return f"prelude: {len(self.config['steps'])} steps, from ({inputs}) to ({outputs})"

    def left(self, conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The declarations of conditions without those that only the prelude takes."""
        return {
            name: said for name, said in conditions.items() if name in self.taken or name not in self.found.conditions
        }

    def made_for(self, takes: NamedConditions, dtype: torch.dtype) -> tuple[Prelude, NamedConditions]:
        """The prelude for a network, and the conditions that requests give.

        Args:
            takes: what the network takes.
            dtype: of its states.

        Raises:
            ForeignError: they do not fit each other; it fails on examples, or mixes rows.
        """
        try:
            card = PreludeCard.model_validate({"conditions": self.found.conditions, "program": self.config})
            asked = NamedConditions(card.asked(takes.entries), bounds=takes.bounds)
        except ValidationError as error:
            raise ForeignError(f"{self.file}: {explain(error)}") from None
        except ValueError as error:
            raise ForeignError(f"{self.file}: {error}") from None
        with torch.device("meta"):
            prelude = Prelude(card)
        tensors = {f"program.data_{name}": tensor for name, tensor in self.found.tensors.items()}
        prelude.load_state_dict(tensors, assign=True)
        prelude.eval().requires_grad_(False)
        try:
            with torch.no_grad():
                prelude.call(takes.sized({}), *prelude.examples(asked, _TRIAL_ROWS, dtype))
            mixing = prelude.find_mixing(asked, takes, dtype)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ForeignError(f"{self.file}: cannot be run: {first_line(error)}") from None
        if mixing is not None:
            raise ForeignError(f"{self.file}: {mixing}")
        return prelude, asked
