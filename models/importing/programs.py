"""Programs of `torch.export` (.pt2), converted to Pathline's own programs by reading data only.

`torch.export.load` is never called: it unpickles sample inputs and weights marked as pickled, evaluates the text of
symbolic sizes and compiles guards. Here only listed members of the archive are opened, the graph as JSON and tensors as
plain bytes; everything else is ignored.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from models.compute import HALVES
from models.conditions import ONE, NamedCondition
from models.importing.archive import COMPLEX_TYPES, SCALAR_TYPES, Members
from models.importing.files import ForeignError, opened
from models.importing.free_sizes import FreeSizes, symbol
from models.messages import explain, first_line
from models.program.aten import OperationError, operation
from models.program.steps import MAX_STEPS, names_in
from models.shapes import NAME, Axis, Shape, check_axes, free_axes
from models.velocity import FieldKind

_UNBOUNDED_ROWS = 1 << 30
_MEMORY_FORMATS = {1: "contiguous", 2: "channels_last", 4: "preserve"}
_STATE_AXES = {1: ("T",), 2: ("H", "W")}
"""Default names of the free axes of states, by number of axes."""

_CHECKS = re.compile(r"torch\.ops\.aten\.(_assert_\w+|sym_constrain_range\w*)\.\w+")  # they compute nothing
_PLAIN = ("as_int", "as_ints", "as_bool", "as_bools", "as_string")


def read_program(
    path: Path,
    event_shape: Shape | None,
    labels: NamedCondition | None = None,
    inputs: Sequence[str] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    axes: Mapping[str, Mapping[str, Any]] | None = None,
    kind: FieldKind = FieldKind.VELOCITY,
) -> Read:
    """Read an exported program.

    Args:
        path: the archive.
        event_shape: the shape that one state must have, with names for its free axes, or None to take the program's.
        labels: the class labels that it takes, which it cannot declare itself; None if it takes none.
        inputs: the names of its arguments in order: `x`, `t`, and the conditions; None to infer them.
        conditions: fields of `NamedCondition` that it cannot declare itself, by name of the condition.
        axes: fields of `Axis` that narrow the program's bounds on its free axes, by axis name.
        kind: what it returns; an average velocity needs `inputs`, with `r`, the end of a step, or `d`, its length.

    Raises:
        ForeignError: it is not a program, or has content that is not allowed in one; the message says which.
    """
    with _opened(path) as reader:
        return reader.read(event_shape, labels, inputs, conditions or {}, axes or {}, kind)


@dataclass(frozen=True)
class ReadFunction:
    """An exported function other than a velocity.

    Attributes:
        config: config of a `models.program.function.Function`.
        tensors: its tensors by name.
        conditions: its inputs in the form of a card's conditions, by name.
        shapes: shape of one row of each input and result, by name; None for a free size.
        unused: the inputs on which no result depends.
        free: for each size of one row of `x`, the name of its free axis (equal sizes share one), or None if fixed.
        axes: the allowed sizes of the free axes, by name.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    conditions: dict[str, dict[str, Any]]
    shapes: dict[str, list[int | None]]
    unused: list[str]
    free: list[str | None] = field(default_factory=list)
    axes: dict[str, Axis] = field(default_factory=dict)


def read_function(
    path: Path,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
) -> ReadFunction:
    """Read an exported prelude or decoder: a function of tensors with one row per sample.

    Args:
        path: the archive.
        outputs: the names of its results in order; None numbers them.
        inputs: the names of its arguments in order; None takes those of the exported module.
        conditions: fields of `NamedCondition` that it cannot declare itself, by name of the input; other names are
            ignored.

    Raises:
        ForeignError: as `read_program`.
    """
    with _opened(path) as reader:
        return reader.function(outputs, inputs, conditions or {})


@contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            members = Members(path, archive)
            yield _Reader(path, members, members.program())
    except zipfile.BadZipFile as error:
        raise ForeignError(f"{path}: is not an archive of torch.export: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, EOFError) as error:
        raise ForeignError(f"{path}: is not a program that can be read: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class Read:
    """A program that was read.

    Attributes:
        config: config of a `models.program.network.Program`.
        tensors: its tensors.
        order: the order of its arguments, such as `t, x`.
        axes: the allowed sizes of its free axes.
        unused: the conditions on which its velocity does not depend.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    order: str
    axes: dict[str, Axis]
    unused: list[str]


class _Reader:
    """Converts the JSON of one program to Pathline's form."""

    def __init__(self, path: Path, members: Members, document: Mapping[str, Any]) -> None:
        self.path, self.members, self.document = path, members, document
        self.free = FreeSizes(path, document["range_constraints"])
        self.graph = document["graph_module"]["graph"]
        if (steps := len(self.graph["nodes"])) > MAX_STEPS:
            raise ForeignError(f"{path}: has {steps} steps; at most {MAX_STEPS} are served")
        self.names: dict[str, str] = {}  # theirs -> ours
        self.tensors: dict[str, Tensor] = {}
        self.first: list[dict[str, Any]] = []  # steps before those of the graph
        self.rows: list[int | None] = [1, None]
        self.time_dtype: str | None = None
        self.end: str | None = None  # the name of the end of a step
        self.times: tuple[str, ...] = ("x", "t")  # the inputs that are no conditions
        self.vectors: list[Any] = []  # the condition without a name, if it is of the dtype of the states

    def read(
        self,
        event_shape: Shape | None,
        labels: NamedCondition | None,
        names: Sequence[str] | None,
        declared: Mapping[str, Mapping[str, Any]],
        bounds: Mapping[str, Mapping[str, Any]],
        kind: FieldKind,
    ) -> Read:
        inputs = self._inputs()
        output = self._output()
        if kind.takes_ends:
            self.end = self._end_of(names)
            self.times = ("x", "t", self.end)
        order = self._arguments(inputs, output) if names is None else self._named(inputs, names)
        shape = self._states(event_shape)
        conditions = self._condition(labels, declared) if names is None else self._conditions(names, declared)
        if unknown := sorted(set(declared) - set(conditions)):
            known = ", ".join(conditions) or "none"
            raise ForeignError(f"--conditions names {unknown[0]!r}; the conditions among --inputs are {known}")
        axes = self._bounds(shape, conditions, bounds)
        dtype = self._rows(output, shape)
        body = self._body()
        unused = self._unused(body["steps"], [output], *self.times)
        config = {"event_shape": list(shape), "dtype": dtype, **body, "conditions": conditions}
        if self.end is not None:
            config |= {"field": kind, "end": self.end}
        if self.time_dtype is not None:
            config["time_dtype"] = self.time_dtype
        if self.rows != [1, None]:
            config["rows"] = self.rows
        return Read(config | {"output": self.names[output]}, self.tensors, ", ".join(order), axes, unused)

    def _unused(self, steps: Sequence[Mapping[str, Any]], outputs: Sequence[str], *needed: str) -> list[str]:
        """The conditions on which the outputs do not depend.

        Raises:
            ForeignError: they do not depend on one of the needed inputs. An export merges two arguments that were given
                the same tensor, and the second has no effect.
        """
        used = {self.names[name] for name in outputs}
        for step in reversed(steps):
            if used.intersection(step["out"]) and not step["op"].startswith("torch.ops.aten.sym_"):
                used |= names_in([*step["args"], *step["kwargs"].values()])
        inputs = [ours for ours in self.names.values() if ours in self.times or ours.startswith("c_")]
        unused = [ours.removeprefix("c_") for ours in inputs if ours not in used]
        for name in unused:
            if name in needed:
                raise ForeignError(
                    f"{self.path}: the result does not depend on {name}; if one tensor was given for two arguments of "
                    "the export, such as f(x, t, t), export it again with a tensor for each"
                )
        return unused

    def _body(self) -> dict[str, Any]:
        """The steps and the tensors in the form of a card."""
        steps = [step for number, node in enumerate(self.graph["nodes"]) if (step := self._step(number, node))]
        steps = [*self.first, *steps]
        stored = {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in self.tensors.items()
        }
        return {"tensors": stored, "steps": steps}

    def function(
        self, outputs: Sequence[str] | None, names: Sequence[str] | None, declared: Mapping[str, Mapping[str, Any]]
    ) -> ReadFunction:
        """See `read_function`."""
        given = self._inputs()
        names = given if names is None else names
        if len(names) != len(given) or len(set(names)) != len(names):
            raise ForeignError(
                f"{self.path}: takes {len(given)} tensors, {', '.join(given)}; {len(names)} different names were "
                f"given: {', '.join(names)}"
            )
        wrong = [name for name in names if not re.fullmatch(NAME, name) or (name in ("x", "t") and len(names) > 1)]
        if wrong:
            raise ForeignError(
                f"{self.path}: {wrong[0]!r} cannot be the name of an input; use letters, digits and _, a letter first, "
                "and neither x nor t"
            )
        self.names.update(zip(given, (f"c_{name}" for name in names), strict=True))
        found = self._outputs()
        outputs = [str(number) for number in range(len(found))] if outputs is None else outputs
        if len(found) != len(outputs):
            raise ForeignError(f"{self.path}: returns {len(found)} tensors, expected {len(outputs)}: {list(outputs)}")
        metas = [self._meta(name) for name in (*given, *found)]
        rows = self._row_limits([_rows_of(self.path, meta) for meta in metas])
        kinds = {name: self._kind(theirs) for name, theirs in zip(names, given, strict=True)}
        config: dict[str, Any] = {"inputs": kinds}
        conditions = self._conditions([name for name in names if name != "x"], declared)
        config |= self._body()
        unused = self._unused(config["steps"], found, "x")
        config["outputs"] = {name: self.names[theirs] for name, theirs in zip(outputs, found, strict=True)}
        if rows != [1, None]:
            config["rows"] = rows
        shapes = {
            name: [size.get("as_int") for size in self._meta(theirs)["sizes"][1:]]
            for name, theirs in zip((*names, *outputs), (*given, *found), strict=True)
        }
        free: list[str | None] = []
        if "x" in names:
            shape = self._axes("states", self._meta(given[list(names).index("x")])["sizes"][1:], None)
            free = [size if isinstance(size, str) else None for size in shape]
        return ReadFunction(config, self.tensors, conditions, shapes, unused, free, self.free.bounds({}))

    def _outputs(self) -> list[str]:
        """The names of the results, which must be tensors computed by the program."""
        specs, outputs = self.document["graph_module"]["signature"]["output_specs"], self.graph["outputs"]
        if any("user_output" not in spec for spec in specs) or any("as_tensor" not in output for output in outputs):
            raise ForeignError(f"{self.path}: returns something other than tensors, or changes its inputs")
        return [output["as_tensor"]["name"] for output in outputs]

    def _inputs(self) -> list[str]:
        """Read the tensors among the graph's inputs; return the names of the inputs that the caller gives."""
        given: list[str] = []
        weights = self.members.json("data/weights/model_weights_config.json")["config"]
        constants = self.members.json("data/constants/model_constants_config.json")["config"]
        for spec in self.document["graph_module"]["signature"]["input_specs"]:
            [(kind, content)] = spec.items()
            if kind == "user_input" and "as_tensor" in content["arg"]:
                given.append(content["arg"]["as_tensor"]["name"])
                continue
            key = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
            if kind not in key:
                raise ForeignError(f"{self.path}: has an input of kind {kind}; only tensors may go in")
            name = content[key[kind]]
            inside = name in weights and kind != "tensor_constant"
            table, folder = (weights, "data/weights") if inside else (constants, "data/constants")
            tensor = self.members.tensor(folder, table[name], name, masks=kind != "parameter")
            self.names[content["arg"]["name"]] = self._stored(tensor)
        return given

    def _stored(self, tensor: Tensor) -> str:
        """Keep a tensor; return its name. A complex one is kept as pairs of real numbers, as weights files are real."""
        name = f"w{len(self.tensors)}"
        if not tensor.is_complex():
            self.tensors[name] = tensor
            return name
        self.tensors[name] = torch.view_as_real(tensor)
        whole = {"op": "torch.ops.aten.view_as_complex.default", "args": [{"value": name}], "kwargs": {}}
        self.first.append({**whole, "out": [f"{name}_complex"], "single": True})
        return f"{name}_complex"

    def _arguments(self, given: list[str], output: str) -> list[str]:
        """Identify the arguments by dimensions and dtypes; return `x`, `t` and `condition` in their order.

        States have the shape of the result, and come first if a vector condition has it too.
        """
        ranks = [len(self._meta(name)["sizes"]) for name in given]
        rest = [name for name, rank in zip(given, ranks, strict=True) if rank > 1]
        flat = [name for name, rank in zip(given, ranks, strict=True) if rank == 1]
        times = [name for name in flat if len(flat) == 1 or self._kind(name) != "int64"]
        if len(given) not in (2, 3) or len(times) != 1 or not rest or 0 in ranks:
            raise ForeignError(
                f"{self.path}: takes {len(given)} tensors of {ranks} dimensions; a velocity takes states of two or "
                "more, times of one, and at most class labels (int64) of one or vectors of two as a condition: "
                "export it as f(x, t) or f(x, t, condition), in any order"
            )
        shape = self._meta(output)["sizes"][1:]
        states = next((name for name in rest if self._meta(name)["sizes"][1:] == shape), rest[0])
        roles = {states: "x", times[0]: "t"}
        order = [roles.get(name, ONE) for name in given]
        self.names.update(zip(given, (f"c_{ONE}" if role == ONE else role for role in order), strict=True))
        return order

    def _named(self, given: list[str], names: Sequence[str]) -> list[str]:
        """Give the arguments the user's names; return the names in order."""
        if len(names) != len(given) or len(set(names)) != len(names) or not set(self.times) <= set(names):
            raise ForeignError(
                f"{self.path}: takes {len(given)} tensors, and --inputs names {len(names)}, {','.join(names)}; name "
                f"each, x for states and {' and '.join(self.times[1:])} for times among them"
            )
        wrong = [name for name in names if not re.fullmatch(NAME, name)]
        if wrong:
            raise ForeignError(f"--inputs: {wrong[0]!r} is not a name; use letters, digits and _, a letter first")
        self.names.update(zip(given, (n if n in self.times else f"c_{n}" for n in names), strict=True))
        return list(names)

    def _end_of(self, names: Sequence[str] | None) -> str:
        """The name of the end of a step among the arguments of a field of average velocity."""
        ends = {"r", "d"}.intersection(names or ())
        if len(ends) != 1:
            raise ForeignError(
                f"{self.path}: an average velocity takes the end of a step, r, or its length, d (both in its own time, "
                "the length at least 0); name its arguments in their order, as in --inputs x,t,r"
            )
        return ends.pop()

    def _conditions(self, names: Sequence[str], declared: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The conditions of the program in the form of a card, from the program itself and the user's declarations."""
        theirs = {ours: name for name, ours in self.names.items()}
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in self.times:
                continue
            meta = self._meta(theirs[f"c_{name}"])
            if meta["dtype"] not in SCALAR_TYPES:
                raise ForeignError(f"{self.path}: condition {name} is of a type that is not served; use float32")
            stated = declared.get(name, {})
            shape = self._axes(f"condition {name}", meta["sizes"][1:], stated.get("shape"))
            bounds = self.free.bounds({})
            most = {axis: bounds[axis].max for axis in free_axes(shape)}
            fields = {"dtype": SCALAR_TYPES[meta["dtype"]], "shape": shape, "max": most, **stated}
            found |= self._entry(name, fields)
            entry, theirs_dtype = NamedCondition.model_validate(fields), SCALAR_TYPES[meta["dtype"]]
            if not entry.moved and entry.dtype != theirs_dtype:
                raise ForeignError(
                    f"{self.path}: condition {name} is {theirs_dtype}, but declared as {entry.dtype} without a scale"
                )
        return found

    def _axes(self, what: str, sizes: list[Mapping[str, Any]], stated: Sequence[Any] | None) -> Shape:
        """A shape with free axes named by the user, or by default names."""
        if stated is not None and len(stated) != len(sizes):
            raise ForeignError(
                f"{self.path}: {what} has {len(sizes)} axes besides rows; the shape given is {list(stated)}"
            )
        states = what == "states"
        usual = iter(_STATE_AXES.get(sum("as_int" not in size for size in sizes), ()) if states else ())
        shape: list[int | str] = []
        for place, size in enumerate(sizes):
            if "as_int" in size:
                shape.append(size["as_int"])
                continue
            own = next(usual, None) or self.free.fresh()
            given = None if stated is None else stated[place]
            if given is not None and not isinstance(given, str):
                raise ForeignError(f"{self.path}: dimension {place + 1} of its {what} is free; name it, as in 80xT")
            shape.append(self.free.axis(what, place + 1, size, given or own, chosen=given is not None))
        return tuple(shape)

    def _states(self, stated: Shape | None) -> Shape:
        """The shape of one state, which must be the user's if one is given."""
        [x] = [theirs for theirs, ours in self.names.items() if ours == "x"]
        sizes = self._meta(x)["sizes"][1:]
        found = [size.get("as_int", "free") for size in sizes]
        other = stated is not None and (
            len(stated) != len(found) or any(a != b for a, b in zip(stated, found, strict=True) if b != "free")
        )
        if other or min((size for size in found if size != "free"), default=1) < 1:
            raise ForeignError(
                f"{self.path}: its states have the shape {found}, but --event-shape is {list(stated or found)}"
            )
        return self._axes("states", sizes, stated)

    def _bounds(
        self, shape: Shape, conditions: dict[str, dict[str, Any]], stated: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Axis]:
        """The allowed sizes of free axes; conditions get the same largest sizes."""
        bounds = self.free.bounds(stated)
        try:
            for fields in conditions.values():
                for axis, most in fields.get("max", {}).items():
                    bounds[axis] = Axis.model_validate({**dict(bounds[axis]), "max": min(most, bounds[axis].max)})
            for fields in conditions.values():
                fields.get("max", {}).update({axis: bounds[axis].max for axis in fields.get("max", {})})
            kept = {a: b for a, b in bounds.items() if a in shape or b.multiple > 1 or b.min > 1}
            check_axes({"the shape of states": shape}, kept)
        except ValueError as error:
            raise ForeignError(f"{self.path}: {first_line(error)}; give their sizes with --axes") from None
        return kept

    def _condition(
        self, labels: NamedCondition | None, declared: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The condition of the program, a label or a vector, in the form of a card; or none."""
        given = next((name for name, ours in self.names.items() if ours == f"c_{ONE}"), None)
        if labels is not None and (given is None or self._kind(given) != "int64"):
            raise ForeignError(f"{self.path}: takes no class labels (int64 of one dimension); leave --classes out")
        if given is None:
            return {}
        sizes = self._meta(given)["sizes"]
        if len(sizes) == 1:
            if labels is None:
                raise ForeignError(f"{self.path}: takes class labels; give their number with --classes")
            return self._entry(ONE, {**labels.model_dump(mode="json"), **declared.get(ONE, {})})
        width = sizes[1].get("as_int", 0)
        if len(sizes) != 2 or width < 1 or self._kind(given) not in ("float32", "float64"):
            raise ForeignError(
                f"{self.path}: its condition is {self._kind(given)} of {len(sizes)} dimensions; export it with class "
                "labels (int64 of one dimension) or vectors of floating-point numbers (two dimensions)"
            )
        self.vectors.append(self._meta(given))
        vector = NamedCondition.vector(width, null=False).model_dump(mode="json")
        return self._entry(ONE, {**vector, **declared.get(ONE, {})})

    def _entry(self, name: str, fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a condition by name, checked."""
        try:
            return {name: NamedCondition.model_validate(fields).model_dump(mode="json")}
        except ValidationError as error:
            raise ForeignError(f"{self.path}: condition {name}: {explain(error)}") from None

    def _kind(self, name: str) -> str:
        return SCALAR_TYPES.get(self._meta(name)["dtype"], "another type")

    def _output(self) -> str:
        specs, outputs = self.document["graph_module"]["signature"]["output_specs"], self.graph["outputs"]
        if len(specs) != 1 or "user_output" not in specs[0] or "as_tensor" not in outputs[0]:
            raise ForeignError(
                f"{self.path}: returns {len(specs)} values or changes its inputs; a velocity is one tensor"
            )
        return outputs[0]["as_tensor"]["name"]

    def _rows(self, output: str, shape: Shape) -> str:
        """Check shapes and dtypes: any number of rows, the same in states, times and velocities; returns the dtype."""
        theirs = {ours: name for name, ours in self.names.items()}
        x, t, v = self._meta(theirs["x"]), self._meta(theirs["t"]), self._meta(output)
        given = [self._meta(name) for ours, name in theirs.items() if ours.startswith("c_")]
        ends = [] if self.end is None else [self._meta(theirs[self.end])]
        self.rows = self._row_limits([meta["sizes"][0] for meta in (x, t, v, *ends, *given)])
        if any(len(meta["sizes"]) != 1 or meta["dtype"] != t["dtype"] for meta in (t, *ends)):
            raise ForeignError(f"{self.path}: {' and '.join(self.times[1:])} must be one number a row, of one type")
        answered = [size.get("as_int", "a free size") for size in v["sizes"][1:]]
        wanted = ["a free size" if isinstance(size, str) else size for size in shape]
        if answered != wanted:
            raise ForeignError(
                f"{self.path}: returns the shape {answered}, but its states have {wanted}; they must agree"
            )
        vectors = self.vectors
        kinds = {SCALAR_TYPES.get(meta["dtype"], "another type") for meta in (x, v, *vectors)}
        half = len(kinds) == 1 and kinds <= HALVES.keys()
        times = self._kind(theirs["t"])
        if times == "int64":
            self.time_dtype = "int64"
        else:
            kinds.add(times)
        if half and kinds - HALVES.keys() == {"float32"}:
            self.time_dtype = "float32"
            kinds.remove("float32")
        if len(kinds) > 1 or not kinds & {"float32", "float64", *HALVES}:
            raise ForeignError(
                f"{self.path}: {self._kinds_said(x, v, vectors, times)}; export all in float32, or states and "
                "velocities in bfloat16 or float16, with times in the same, in float32 or in int64"
            )
        return kinds.pop()

    @staticmethod
    def _kinds_said(x: Mapping[str, Any], v: Mapping[str, Any], given: list[Any], times: str) -> str:
        """Return the dtypes of states, times, velocities and conditions in words."""
        kind, *others = (SCALAR_TYPES.get(meta["dtype"], "of another type") for meta in (x, v, *given))
        return f"states are {kind}, times {times}, velocities {', its condition '.join(others)}"

    def _row_limits(self, sizes: list[Mapping[str, Any]]) -> list[int | None]:
        """The minimum and maximum rows per call, from the first dimensions of all arguments and the result."""
        fixed = {size.get("as_int") for size in sizes}
        if len(fixed) == 1 and None not in fixed:
            return [fixed.pop()] * 2
        rows = symbol(sizes[0])
        if rows is None or any(symbol(size) != rows for size in sizes):
            raise ForeignError(
                f"{self.path}: the first dimension is not the same number of rows in all inputs and outputs; "
                "export with dynamic_shapes={'x': {0: Dim('rows')}, 't': {0: Dim('rows')}}"
            )
        limits = self.document["range_constraints"].get(rows, {})
        low, high = limits.get("min_val"), limits.get("max_val")
        least = max(1, low or 1)
        if high is not None and high < least:
            raise ForeignError(
                f"{self.path}: takes {low} to {high} rows, so it takes none; export it with other bounds"
            )
        # Exporters write 2 to mean only that one row is not a special case.
        return [1 if least == 2 else least, None if high is None or high >= _UNBOUNDED_ROWS else high]

    def _meta(self, name: str) -> Mapping[str, Any]:
        return self.graph["tensor_values"][name]

    def _step(self, number: int, node: Mapping[str, Any]) -> dict[str, Any] | None:
        target = node["target"]
        if _CHECKS.fullmatch(target):
            return None
        try:
            operation(target)
        except OperationError as error:
            raise ForeignError(f"{self.path}: node {number}: {error}") from None
        args = [self._value(each["arg"]) for each in node["inputs"] if each.get("kind") != 2]
        kwargs = {each["name"]: self._value(each["arg"]) for each in node["inputs"] if each.get("kind") == 2}
        out, single = self._results(node["outputs"], number)
        return {"op": target, "args": args, "kwargs": kwargs, "out": out, "single": single}

    def _results(self, outputs: list[Mapping[str, Any]], number: int) -> tuple[list[str], bool]:
        single = len(outputs) == 1 and "as_tensors" not in outputs[0]
        theirs: list[str] = []
        for output in outputs:
            [(kind, content)] = output.items()
            if kind == "as_tensors":
                theirs += [each["name"] for each in content]
            elif kind == "as_tensor":
                theirs.append(content["name"])
            elif kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
                theirs.append(content["as_name"])
            else:
                raise ForeignError(f"{self.path}: node {number} has a result of kind {kind[:40]}")
        ours = [f"v{number}_{k}" for k in range(len(theirs))]
        self.names.update(zip(theirs, ours, strict=True))
        return ours, single

    def _value(self, argument: Mapping[str, Any]) -> Any:
        [(kind, content)] = argument.items()
        if kind in ("as_float", "as_floats"):
            return [_float(each) for each in content] if kind == "as_floats" else _float(content)
        if kind in _PLAIN:
            return content
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return {"value": self.names[content["name"]]}
        if kind == "as_tensors":
            return [{"value": self.names[each["name"]]} for each in content]
        if kind in ("as_optional_tensor", "as_optional_tensors"):
            return self._value(content) if kind == "as_optional_tensor" else [self._value(each) for each in content]
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            return self._number(content)
        if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self._number(each) for each in content]
        if kind == "as_scalar_type" and (name := (SCALAR_TYPES | COMPLEX_TYPES).get(content)):
            return {"dtype": name}
        if kind == "as_complex":
            return {"complex": [content["real"], content["imag"]]}
        if kind == "as_device":
            return {"device": True}
        if kind == "as_memory_format" and content in _MEMORY_FORMATS:
            return {"format": _MEMORY_FORMATS[content]}
        if kind == "as_layout":
            return None  # strided, as every tensor here
        raise ForeignError(f"{self.path}: an argument of kind {kind[:40]} may not be in a program")

    def _number(self, argument: Mapping[str, Any]) -> Any:
        [(kind, content)] = argument.items()
        return {"value": self.names[content]} if kind == "as_name" else content


def _float(content: float | str) -> float | dict[str, str]:
    """A number; one that JSON cannot represent is read from text and written as an object."""
    if not isinstance(content, str):
        return content
    if content not in ("Infinity", "-Infinity", "NaN"):
        raise ValueError(f"a number is {content[:40]!r}")
    return {"number": content}


def _rows_of(path: Path, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first size of a tensor."""
    if not meta["sizes"]:
        raise ForeignError(f"{path}: takes or returns a single number; each tensor must have one row for each sample")
    return meta["sizes"][0]
