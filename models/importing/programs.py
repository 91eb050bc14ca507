"""Programs of `torch.export` (.pt2), converted to Pathline's own programs by reading data only.

`torch.export.load` is never called: it unpickles sample inputs and weights marked as pickled, evaluates the text of
symbolic sizes and compiles guards. Here only listed members of the archive are opened, the graph as JSON and tensors as
plain bytes; everything else is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from models.compute import HALVES
from models.conditions import ONE, NamedCondition
from models.importing.files import ForeignError
from models.importing.graph import Graph, opened_graph
from models.messages import explain, first_line
from models.shapes import NAME, FreeAxis, Shape, check_axes, free_axes
from models.velocity import FieldKind

Stated = Mapping[str, Mapping[str, Any]]
"""What the user states of conditions or axes, by name."""

Roles = dict[str, str]
"""The arguments of a graph by what they are: `x`, `t`, `r` or `d`, or the name of a condition; in their order."""


@dataclass(frozen=True)
class ExportedProgram:
    """A program that was read.

    Attributes:
        config: config of a `models.program.network.Program`, or of a `models.program.steps.Function`.
        tensors: its tensors by name.
        arguments: the names of its arguments, in order.
        conditions: those other than states and times, in the form of a card.
        axes: the allowed sizes of free axes.
        unused: the conditions on which no result depends.
        states: shape of one state, with names for free sizes (equal ones share one); empty without states.
        results: shape of one row of each result of a function, by name; None for a free size.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    arguments: Sequence[str]
    conditions: dict[str, dict[str, Any]]
    axes: dict[str, FreeAxis]
    unused: list[str]
    states: Shape = ()
    results: Mapping[str, list[int | None]] = field(default_factory=dict)


def read_program(
    path: Path,
    event_shape: Shape | None,
    labels: NamedCondition | None = None,
    inputs: Sequence[str] | None = None,
    conditions: Stated | None = None,
    axes: Stated | None = None,
    kind: FieldKind = FieldKind.VELOCITY,
) -> ExportedProgram:
    """Read an exported velocity.

    Args:
        path: the archive.
        event_shape: the shape that one state must have, with names for its free axes, or None to take the program's.
        labels: the class labels that it takes, which it cannot declare itself; None if it takes none.
        inputs: the names of its arguments in order: `x`, `t`, and the conditions; None to infer them.
        conditions: fields of `NamedCondition` that it cannot declare itself, by name of the condition; other names are
            ignored.
        axes: fields of `FreeAxis` that narrow the program's bounds on its free axes, by axis name.
        kind: what it returns; an average velocity needs `inputs`, with `r`, the end of a step, or `d`, its length.

    Raises:
        ForeignError: it is not a program, or has content that is not allowed in one; the message says which.
    """
    stated = conditions or {}
    with opened_graph(path) as graph:
        if len(results := graph.results()) != 1:
            raise ForeignError(f"{path}: returns {len(results)} values; a velocity is one tensor")
        [velocity] = results
        end = _end(path, inputs) if kind.takes_ends else None
        times = ["t", end] if end else ["t"]
        roles = _inferred(graph, velocity) if inputs is None else _named(graph, inputs, times)
        names = {role: role if role in ("x", *times) else f"c_{role}" for role in roles}
        graph.names.update({argument: names[role] for role, argument in roles.items()})
        shape = _states(graph, roles["x"], event_shape)
        if inputs is None:
            stated = {ONE: _only_condition(graph, roles.get(ONE), labels) | dict(stated.get(ONE, {}))}
        taken = {role: argument for role, argument in roles.items() if role not in ("x", *times)}
        fields = _conditions(graph, taken, stated)
        bounds = _bounds(graph, shape, fields, axes or {})
        rows = graph.row_limits([*(roles[name] for name in ("x", *times)), velocity, *roles.values()])
        vectors = [roles[ONE]] if inputs is None and fields and fields[ONE].get("classes") is None else []
        dtypes = _dtypes(graph, roles, velocity, shape, times, vectors)
        body = graph.body()
        config = {"event_shape": list(shape), **dtypes, **body, "conditions": fields, "rows": rows}
        config |= {"output": graph.names[velocity]} | ({} if end is None else {"field": kind, "end": end})
        unused = graph.unused(body["steps"], [velocity], ["x", *times])
        return ExportedProgram(config, graph.tensors, list(roles), fields, bounds, unused, shape)


def read_function(
    path: Path,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    conditions: Stated | None = None,
) -> ExportedProgram:
    """Read an exported prelude or decoder: a function of tensors with one row per sample.

    Args:
        path: the archive.
        outputs: the names of its results in order; None numbers them.
        inputs: the names of its arguments in order; None takes those of the exported module.
        conditions: see `read_program`.

    Raises:
        ForeignError: as `read_program`.
    """
    with opened_graph(path) as graph:
        arguments = graph.arguments
        names = arguments if inputs is None else inputs
        if len(names) != len(arguments) or len(set(names)) != len(names):
            raise ForeignError(
                f"{path}: takes {len(arguments)} tensors, {', '.join(arguments)}; {len(names)} different names were "
                f"given: {', '.join(names)}"
            )
        wrong = [name for name in names if not re.fullmatch(NAME, name) or (name in ("x", "t") and len(names) > 1)]
        if wrong:
            raise ForeignError(
                f"{path}: {wrong[0]!r} cannot be the name of an input; use letters, digits and _, a letter first, "
                "and neither x nor t"
            )
        roles = dict(zip(names, arguments, strict=True))
        graph.names.update({argument: f"c_{name}" for name, argument in roles.items()})
        results = graph.results()
        outputs = [str(number) for number in range(len(results))] if outputs is None else outputs
        if len(results) != len(outputs):
            raise ForeignError(f"{path}: returns {len(results)} tensors, expected {len(outputs)}: {list(outputs)}")
        rows = graph.row_limits([*arguments, *results])
        taken = {name: argument for name, argument in roles.items() if name != "x"}
        fields = _conditions(graph, taken, conditions or {})
        dtypes = {name: graph.dtype(argument) or "another type" for name, argument in roles.items()}
        config = {"inputs": dtypes, **graph.body(), "rows": rows}
        unused = graph.unused(config["steps"], results, ["x"])
        named = dict(zip(outputs, results, strict=True))
        config["outputs"] = {name: graph.names[result] for name, result in named.items()}
        shapes = {name: [size.get("as_int") for size in graph.sizes(result)[1:]] for name, result in named.items()}
        states = graph.shape(roles["x"], "states") if "x" in roles else ()
        bounds = graph.free.bounds({})
        return ExportedProgram(config, graph.tensors, list(names), fields, bounds, unused, states, shapes)


def _end(path: Path, inputs: Sequence[str] | None) -> str:
    """Return the name of the end of a step among the arguments of a field of average velocity."""
    ends = {"r", "d"}.intersection(inputs or ())
    if len(ends) != 1:
        raise ForeignError(
            f"{path}: an average velocity takes the end of a step, r, or its length, d (both in its own time, "
            "the length at least 0); name its arguments in their order, as in --inputs x,t,r"
        )
    return ends.pop()


def _inferred(graph: Graph, velocity: str) -> Roles:
    """Identify `x`, `t` and `condition` by dimensions and dtypes.

    States have the shape of the result, and come first if a vector condition has it too.
    """
    ranks = {argument: len(graph.sizes(argument)) for argument in graph.arguments}
    wide = [argument for argument, rank in ranks.items() if rank > 1]
    flat = [argument for argument, rank in ranks.items() if rank == 1]
    times = [argument for argument in flat if len(flat) == 1 or graph.dtype(argument) != "int64"]
    if len(ranks) not in (2, 3) or len(times) != 1 or not wide or 0 in ranks.values():
        raise ForeignError(
            f"{graph.path}: takes {len(ranks)} tensors of {list(ranks.values())} dimensions; a velocity takes states "
            "of two or more, times of one, and at most class labels (int64) of one or vectors of two as a condition: "
            "export it as f(x, t) or f(x, t, condition), in any order"
        )
    shape = graph.sizes(velocity)[1:]
    states = next((argument for argument in wide if graph.sizes(argument)[1:] == shape), wide[0])
    roles = {states: "x", times[0]: "t"}
    return {roles.get(argument, ONE): argument for argument in graph.arguments}


def _named(graph: Graph, inputs: Sequence[str], times: Sequence[str]) -> Roles:
    """Give the arguments the user's names."""
    arguments = graph.arguments
    if len(inputs) != len(arguments) or len(set(inputs)) != len(inputs) or not {"x", *times} <= set(inputs):
        raise ForeignError(
            f"{graph.path}: takes {len(arguments)} tensors, and --inputs names {len(inputs)}, {','.join(inputs)}; "
            f"name each, x for states and {' and '.join(times)} for times among them"
        )
    wrong = [name for name in inputs if not re.fullmatch(NAME, name)]
    if wrong:
        raise ForeignError(f"--inputs: {wrong[0]!r} is not a name; use letters, digits and _, a letter first")
    return dict(zip(inputs, arguments, strict=True))


def _states(graph: Graph, argument: str, stated: Shape | None) -> Shape:
    """Return the shape of one state, which must be the user's if one is given."""
    sizes = [size.get("as_int", "free") for size in graph.sizes(argument)[1:]]
    differs = stated is not None and (
        len(stated) != len(sizes) or any(a != b for a, b in zip(stated, sizes, strict=True) if b != "free")
    )
    if differs or min((size for size in sizes if size != "free"), default=1) < 1:
        raise ForeignError(
            f"{graph.path}: its states have the shape {sizes}, but --event-shape is {list(stated or sizes)}"
        )
    return graph.shape(argument, "states", stated)


def _conditions(graph: Graph, taken: Mapping[str, str], stated: Stated) -> dict[str, dict[str, Any]]:
    """Return named conditions in the form of a card, from the program itself and the user's statements."""
    conditions: dict[str, dict[str, Any]] = {}
    for name, argument in taken.items():
        if (dtype := graph.dtype(argument)) is None:
            raise ForeignError(f"{graph.path}: condition {name} is of a type that is not served; use float32")
        shape = graph.shape(argument, f"condition {name}", stated.get(name, {}).get("shape"))
        bounds = graph.free.bounds({})
        most = {axis: bounds[axis].max for axis in free_axes(shape)}
        try:
            fields = {"dtype": dtype, "shape": shape, "max": most, **stated.get(name, {})}
            entry = NamedCondition.model_validate(fields)
        except ValidationError as error:
            raise ForeignError(f"{graph.path}: condition {name}: {explain(error)}") from None
        if not entry.is_standardised and entry.dtype != dtype:
            raise ForeignError(
                f"{graph.path}: condition {name} is {dtype}, but declared as {entry.dtype} without a scale"
            )
        conditions[name] = entry.model_dump(mode="json")
    return conditions


def _only_condition(graph: Graph, argument: str | None, labels: NamedCondition | None) -> dict[str, Any]:
    """Return the fields of the condition of a program without `inputs`, a label or a vector; none without one."""
    if labels is not None and (argument is None or graph.dtype(argument) != "int64"):
        raise ForeignError(f"{graph.path}: takes no class labels (int64 of one dimension); leave --classes out")
    if argument is None:
        return {}
    sizes, dtype = graph.sizes(argument), graph.dtype(argument)
    if len(sizes) == 1:
        if labels is None:
            raise ForeignError(f"{graph.path}: takes class labels; give their number with --classes")
        return labels.model_dump(mode="json")
    width = sizes[1].get("as_int", 0)
    if len(sizes) != 2 or width < 1 or dtype not in ("float32", "float64"):
        raise ForeignError(
            f"{graph.path}: its condition is {dtype or 'another type'} of {len(sizes)} dimensions; export it with "
            "class labels (int64 of one dimension) or vectors of floating-point numbers (two dimensions)"
        )
    return NamedCondition.vector(width, null=False).model_dump(mode="json")


def _bounds(graph: Graph, shape: Shape, conditions: dict[str, dict[str, Any]], stated: Stated) -> dict[str, FreeAxis]:
    """Return the allowed sizes of free axes; conditions get the same largest sizes."""
    bounds = graph.free.bounds(stated)
    largest = [fields.get("max", {}) for fields in conditions.values()]
    try:
        for limits in largest:
            for axis, most in limits.items():
                bounds[axis] = FreeAxis.model_validate({**dict(bounds[axis]), "max": min(most, bounds[axis].max)})
        for limits in largest:
            limits.update({axis: bounds[axis].max for axis in limits})
        axes = {name: axis for name, axis in bounds.items() if name in shape or axis.multiple > 1 or axis.min > 1}
        check_axes({"the shape of states": shape}, axes)
    except ValueError as error:
        raise ForeignError(f"{graph.path}: {first_line(error)}; give their sizes with --axes") from None
    return axes


def _dtypes(
    graph: Graph, roles: Roles, velocity: str, shape: Shape, times: Sequence[str], vectors: Sequence[str]
) -> dict[str, str]:
    """Check shapes and dtypes of states, times and velocities; return the `dtype` and, if it differs, `time_dtype`."""
    x, t = roles["x"], roles["t"]
    if any(len(graph.sizes(roles[name])) != 1 or graph.dtype(roles[name]) != graph.dtype(t) for name in times):
        raise ForeignError(f"{graph.path}: {' and '.join(times)} must be one number a row, of one type")
    returned = [size.get("as_int", "a free size") for size in graph.sizes(velocity)[1:]]
    expected = ["a free size" if isinstance(size, str) else size for size in shape]
    if returned != expected:
        raise ForeignError(
            f"{graph.path}: returns the shape {returned}, but its states have {expected}; they must agree"
        )
    kinds = [graph.dtype(value) or "of another type" for value in (x, velocity, *vectors)]
    time = graph.dtype(t) or "of another type"
    dtype, half = kinds[0], kinds[0] in HALVES
    fits = set(kinds) == {dtype} and (half or dtype in ("float32", "float64"))
    if not fits or not (time in (dtype, "int64") or (half and time == "float32")):
        answers = ", its condition ".join(kinds[1:])
        raise ForeignError(
            f"{graph.path}: states are {dtype}, times {time}, velocities {answers}; export all in float32, or states "
            "and velocities in bfloat16 or float16, with times in the same, in float32 or in int64"
        )
    return {"dtype": dtype} if time == dtype else {"dtype": dtype, "time_dtype": time}
