"""Imports: a foreign state dict or program becomes a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from models.architectures import PROGRAM, ArchitectureError, build
from models.checkpoint.card import read_card
from models.checkpoint.saving import save
from models.checkpoint.weights import finite
from models.compute import HALVES, Cast, missing_instructions, to_half
from models.conditions import NamedCondition, NamedConditions
from models.forms.rows import limit_rows
from models.importing.declared import Declared
from models.importing.detection import detect, start_slope
from models.importing.files import ForeignError, read_tensors
from models.importing.matching import Which, select, which_of
from models.importing.parts import make_decoder, make_prelude
from models.importing.programs import read_program
from models.messages import explain, first_line
from models.mixing import find_mixing
from models.network import Network
from models.noise import mean_along, noise
from models.prelude import Prelude
from models.program.network import Program, ProgramConfig
from models.shapes import FreeAxis, Shape, sized, typical
from models.velocity import FieldKind

_OFF_CENTRE = 1e-4
"""Largest mean of a centred velocity, as a share of its largest number."""


@dataclass(frozen=True)
class Imported:
    """An imported checkpoint: its folder, and a report for the user, line by line."""

    path: Path
    report: list[str]


def import_weights(
    file: Path,
    repository: Path,
    name: str,
    architecture: str,
    config: Mapping[str, Any],
    *,
    which: Which | None = None,
    declared: Declared | None = None,
    decoder: Mapping[str, Any] | None = None,
    version: int | None = None,
) -> Imported:
    """Turn a state dict of one of our architectures into a checkpoint.

    Args:
        file: safetensors, or a file of ``torch.save``; nothing in it is run.
        repository: where the checkpoint goes.
        name: name of the model.
        architecture: a key of `models.architectures.ARCHITECTURES`.
        config: its config.
        which: averaged or raw weights, if the file has both.
        declared: the network's convention; fields left out are detected.
        decoder: options of the decoder, see `models.importing.parts.make_decoder`; None for data equal to states.
        version: an unused version; None takes the next.

    Raises:
        ForeignError: the file does not hold this architecture's weights.
        CheckpointError: the checkpoint cannot be written.
    """
    try:
        with torch.device("meta"):
            network = build(architecture, config)
    except ArchitectureError as error:
        raise ForeignError(f"--architecture {architecture}: {error}") from None
    prefix, tensors = select(str(file), read_tensors(file), network.state_dict(), which)
    kind, place = which_of(prefix), f"the prefix {prefix!r}" if prefix else "no prefix"
    report = [f"weights: {len(tensors)} tensors, {kind}, under {place}"]
    tensors, notes = _usable(str(file), tensors, network.state_dict())
    network.load_state_dict(tensors, assign=True)
    source: dict[str, JsonValue] = {"imported_from": file.name, "which": kind, "prefix": prefix}
    return _store(network, {}, repository, name, source, [*report, *notes], declared, decoder, version)


def import_program(
    file: Path,
    repository: Path,
    name: str,
    event_shape: Shape | None = None,
    *,
    labels: NamedCondition | None = None,
    inputs: Sequence[str] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    nulls: Mapping[str, Tensor] | None = None,
    declared: Declared | None = None,
    decoder: Mapping[str, Any] | None = None,
    version: int | None = None,
    row_by_row: bool = False,
    axes: Mapping[str, Mapping[str, Any]] | None = None,
    prelude: Path | None = None,
    prelude_inputs: Sequence[str] | None = None,
    prelude_outputs: Sequence[str] | None = None,
    kind: FieldKind = FieldKind.VELOCITY,
    centred: str | int | None = None,
) -> Imported:
    """Turn a program of `torch.export` into a checkpoint; only data is read from its archive, and only ATen is run.

    Args:
        file: the .pt2 archive of a velocity f(x, t) or f(x, t, condition), in any order, with a free number of rows.
        repository, name, declared, decoder, version: see `import_weights`.
        event_shape: the shape that one state must have, with names for its free axes; None takes the program's.
        labels: the class labels that it takes as a condition; it declares the width of a vector itself.
        inputs, conditions, axes: see `read_program`.
        nulls: tensors that replace missing conditions, by name.
        row_by_row: whether to call the network with one row at a time, on every device, as it mixes rows.
        prelude: the archive of a program that makes some of the conditions from others, once for a request.
        prelude_inputs, prelude_outputs: the names of its arguments and results, see `make_prelude`.
        kind: what it returns, see `read_program`.
        centred: the axis along which its noise and its velocities have the mean zero; None for none.

    Raises:
        ForeignError: the archive is not a program, has content not allowed in one, or the program mixes rows.
        CheckpointError: the checkpoint cannot be written.
    """
    if prelude is not None and not inputs:
        raise ForeignError("--prelude needs the names of the network's arguments: --inputs x,t,...")
    nulls = nulls or {}
    stated = {**(conditions or {}), **{name: {**(conditions or {}).get(name, {}), "null": "stored"} for name in nulls}}
    program = read_program(file, event_shape, labels, inputs, stated, axes, kind)
    config = program.config | ({"rows": [1, 1]} if row_by_row else {})
    try:
        network = Program.with_tensors(ProgramConfig.model_validate(config), program.tensors)
    except ValidationError as error:
        raise ForeignError(f"{file}: config of {PROGRAM}: {explain(error)}") from None
    steps, tensors = len(config["steps"]), len(program.tensors)
    report = [f"program: {steps} steps, {tensors} tensors, arguments ({', '.join(program.arguments)})"]
    if program.unused:
        report.append(f"warning: the velocity does not depend on {', '.join(program.unused)}")
    if program.axes:
        report.append(f"free axes: {', '.join(f'{name} {axis.describe()}' for name, axis in program.axes.items())}")
    takes = requested = network.condition and replace(network.condition, bounds=program.axes)
    stored_prelude = None
    if prelude is not None:
        named, dtype = (prelude_inputs, prelude_outputs, inputs or ()), _state_dtype(network)
        stored_prelude, requested, line = make_prelude(prelude, *named, stated, takes, dtype)
        report.append(line)
    elif unknown := sorted(stated.keys() - program.conditions.keys()):
        names = ", ".join(program.conditions) or "none"
        raise ForeignError(f"{file}: --conditions names {unknown[0]!r}; the conditions among --inputs are {names}")
    if takes is not None and requested is not None:
        network.condition = replace(takes, stored=_stored_nulls(requested, nulls))
        report.append("requests give " + "; ".join(map(requested.describe, requested.in_requests)))
    source: dict[str, JsonValue] = {"imported_from": file.name}
    return _store(
        network, program.axes, repository, name, source, report, declared, decoder, version, stored_prelude, centred
    )


def _stored_nulls(takes: NamedConditions, nulls: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the stored nulls; raise an error unless all are given with the shapes of their conditions."""
    for name, entry in takes.entries.items():
        if entry.null == "stored" and (name not in nulls or tuple(nulls[name].shape) != entry.sizes):
            null = list(nulls[name].shape) if name in nulls else "nothing"
            raise ForeignError(
                f"the stored null of {name} is {null}, expected a tensor of shape {list(entry.sizes)}: --null"
            )
    return dict(nulls)


def _state_dtype(network: Network) -> torch.dtype:
    if isinstance(network.config, ProgramConfig):
        return torch.float64 if network.config.dtype == "float64" else torch.float32
    return next((p.dtype for p in network.state_dict().values() if p.is_floating_point()), torch.float64)


def _store(
    network: Network,
    axes: Mapping[str, FreeAxis],
    repository: Path,
    name: str,
    source: dict[str, JsonValue],
    report: list[str],
    declared: Declared | None,
    decoder: Mapping[str, Any] | None,
    version: int | None,
    prelude: Prelude | None = None,
    centred: str | int | None = None,
) -> Imported:
    """Try a network, with small sizes of its free axes, and save it."""
    network.eval().requires_grad_(False)
    declared = declared or Declared()
    dtype, takes = _state_dtype(network), network.condition
    bounds = {**({} if takes is None else takes.axes), **axes}
    sizes = typical(bounds)
    event, takes = sized(network.event_shape, sizes), None if takes is None else takes.sized(sizes)
    compute, notes = _half(network, declared)
    called = network if compute is None else Cast(network, HALVES[compute])

    def field(x: Tensor, t: Tensor) -> Tensor:
        return called(x, t) if takes is None else called(x, t, takes.examples(len(x), dtype))

    try:
        if declared.changes:
            time = declared.card()
            lines = declared.report(time, start_slope(field, event, dtype, time))
        else:
            time, lines = declared.resolve(*detect(field, event, dtype))
        mixing = find_mixing(called, event, dtype, condition=takes, compute=HALVES.get(compute or ""))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ForeignError(f"the network cannot be evaluated: {first_line(error)}") from None
    if mixing is not None:
        raise ForeignError(f"{source['imported_from']}: {mixing}")
    if centred is not None:
        _check_centred(field, network.event_shape, sizes, dtype, centred)
    lines += notes + (_rows(network, called, bounds, dtype) if isinstance(network, Program) else [])
    decodes, of_decoder = make_decoder(network.event_shape, dtype, decoder or {}, axes)
    path = save(
        repository,
        name,
        network,
        decodes,
        dataset={"name": "imported"},
        training=source,
        seed=0,
        version=version,
        time=time,
        sampling=declared.sampling,
        compute=compute,
        axes=axes,
        prelude=prelude,
        centred=centred,
        noise_independent=declared.noise_independent,
    )
    authors = read_card(path).authors_solver(sizes)
    of_solver = [] if authors is None else [f"solver of requests that name none: {authors}"]
    return Imported(path, [*report, *lines, *of_decoder, *of_solver])


def _check_centred(
    field: Callable[[Tensor, Tensor], Tensor],
    event_shape: Shape,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    axis: str | int,
) -> None:
    """Refuse velocities whose mean along an axis is not zero: states would not keep the mean zero of their noise."""
    if axis not in event_shape and not (isinstance(axis, int) and axis < len(event_shape)):
        raise ForeignError(
            f"--noise-centred is {axis}; the states have the shape {list(event_shape)}: name a free axis"
        )
    place = event_shape.index(axis) if isinstance(axis, str) else axis
    x = noise(0, 0, 4, sized(event_shape, sizes), dtype, centred=place)
    v = field(x, torch.linspace(0.1, 0.9, 4, dtype=dtype))
    off, size = float(mean_along(v, place).abs().max()), float(v.abs().max())
    if off > _OFF_CENTRE * size:
        raise ForeignError(
            f"--noise-centred {axis}: the velocity has a mean of {off:.3g} along it, and numbers up to {size:.3g}; "
            "subtract the mean at the end of the network, as states must keep the mean zero"
        )


def _rows(network: Program, called: nn.Module, bounds: Mapping[str, FreeAxis], dtype: torch.dtype) -> list[str]:
    """Decide how many rows of a program a CPU calls at once; return a line for the user."""
    takes = network.condition
    inputs = [(network.event_shape, dtype), (tuple(network.field.times(torch.empty(1)).shape[1:]), dtype)]
    inputs += [(entry.shape, entry.network_dtype(dtype)) for entry in (takes.entries.values() if takes else ())]

    def call(x: Tensor, t: Tensor, *conditions: Tensor) -> Tensor:
        return called(x, t) if takes is None else called(x, t, takes.pack(conditions))

    limit_rows(network, call, inputs, bounds)
    if network.rows == (1, 1):
        return ["rows: one network call each"]
    alone = network.cpu_rows == 1
    return ["rows: one network call each on a CPU, as a row costs hardly less in a batch"] if alone else []


def _half(network: Network, declared: Declared) -> tuple[Literal["bfloat16", "float16"] | None, list[str]]:
    """Convert a network to its half precision, if any; return that precision and lines for the user."""
    config, chosen = network.config, declared.compute
    own = str(config.dtype) if isinstance(config, ProgramConfig) else None
    if own is not None and chosen not in (None, own):
        raise ForeignError(f"--compute is {chosen}, but the program computes in {own}; export it in {chosen}")
    compute = chosen or own
    if compute != "bfloat16" and compute != "float16":
        return None, []
    to_half(network, compute)
    for key, parameter in network.named_parameters():
        if not finite(parameter):
            raise ForeignError(f"key {key}: has numbers too large for {compute}; use --compute float32")
    note = missing_instructions(compute, program=own is not None)
    return compute, [f"precision: computes in {compute}, states are float32", *([f"warning: {note}"] if note else [])]


def _usable(
    file: str, tensors: dict[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert the tensors to one dtype, float32 unless all are float64; refuse numbers that are not finite."""
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    target = torch.float64 if kinds == {torch.float64} else torch.float32
    usable = {}
    for key, tensor in tensors.items():
        reason = _unusable(tensor)
        if reason is not None:
            raise ForeignError(f"{file}: key {key}: {reason}")
        if expected[key].is_floating_point() != tensor.is_floating_point():
            raise ForeignError(f"{file}: key {key}: found {tensor.dtype}, expected {expected[key].dtype}")
        usable[key] = tensor.to(target) if tensor.is_floating_point() else tensor
        if not finite(usable[key]):
            large = tensor.dtype == torch.float64 and finite(tensor)
            what = "are too large for float32; save all as float64" if large else "are not finite"
            raise ForeignError(f"{file}: key {key}: holds numbers that {what}")
    became = sorted(str(kind).removeprefix("torch.") for kind in kinds - {target})
    if not became:
        return usable, []
    note = f"precision: {' and '.join(became)} became {str(target).removeprefix('torch.')}"
    if became in (["bfloat16"], ["float16"]):
        note += f" (--compute {became[0]} keeps it)"
    scaled = any(name.startswith("float8") for name in became)
    return usable, [note + ("; scales that may belong to them were not applied" if scaled else "")]


def _unusable(tensor: Tensor) -> str | None:
    """Return the reason that a tensor cannot be used, whatever its shape; None if it can."""
    if tensor.is_meta:
        return "has a shape but no numbers (meta device); save the state dict of a network whose weights were loaded"
    if tensor.layout != torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.')}; save a plain tensor, such as tensor.to_dense()"
    if tensor.is_quantized:
        return f"is quantized ({str(tensor.dtype).removeprefix('torch.')}); save tensor.dequantize()"
    if tensor.is_complex():
        return f"is {str(tensor.dtype).removeprefix('torch.')}; the networks here have real weights"
    if str(tensor.dtype) == "torch.float4_e2m1fn_x2":
        return "is float4_e2m1fn_x2, two numbers in a byte; save it as float32"
    return None
