"""The graph of an exported program: its arguments, results and steps, read as JSON and given Pathline's names."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.importing.archive import COMPLEX_TYPES, SCALAR_TYPES, Members
from models.importing.files import ForeignError, opened
from models.importing.free_sizes import FreeSizes, multiple_of
from models.program.aten import operation
from models.program.steps import MAX_STEPS, names_in
from models.shapes import Shape

_UNBOUNDED_ROWS = 1 << 30
_MEMORY_FORMATS = {1: "contiguous", 2: "channels_last", 4: "preserve"}
_STATE_AXES = {1: ("T",), 2: ("H", "W")}
"""Default names of the free axes of states, by number of axes."""

_CHECKS = re.compile(r"torch\.ops\.aten\.(_assert_\w+|sym_constrain_range\w*)\.\w+")  # they compute nothing
_PLAIN = ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_float")
_LISTS = ("as_floats", "as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools")
_STORED = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
"""The inputs of a graph that are stored tensors, and the member with the name of the tensor."""


@contextmanager
def opened_graph(path: Path) -> Iterator[Graph]:
    """Open a program.

    Raises:
        ForeignError: it is not a program, or has content that is not allowed in one; the message says which.
    """
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            yield Graph(path, Members(path, archive))
    except zipfile.BadZipFile as error:
        raise ForeignError(f"{path}: is not an archive of torch.export: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, EOFError) as error:
        raise ForeignError(f"{path}: is not a program that can be read: {type(error).__name__}: {error}") from None


class Graph:
    """The graph of one program.

    Attributes:
        path: the archive.
        arguments: the names of the tensors that a caller gives, in order.
        names: Pathline's names of its values, by those of the graph; a caller names the arguments, and steps the rest.
        tensors: the stored tensors, by Pathline's names.
        free: its free sizes.
    """

    def __init__(self, path: Path, members: Members) -> None:
        module = members.program["graph_module"]
        self.path, self._graph, self._signature = path, module["graph"], module["signature"]
        self._constraints = members.program["range_constraints"]
        self.free = FreeSizes(path, self._constraints)
        if (steps := len(self._graph["nodes"])) > MAX_STEPS:
            raise ForeignError(f"{path}: has {steps} steps; at most {MAX_STEPS} are served")
        self.names: dict[str, str] = {}
        self._first: list[dict[str, Any]] = []  # steps before those of the graph
        self.tensors: dict[str, Tensor] = {}
        self.arguments = self._read_inputs(members)

    def _read_inputs(self, members: Members) -> list[str]:
        """Read the stored tensors among the inputs; return the names of the others, which a caller gives."""
        arguments: list[str] = []
        weights = members.json("data/weights/model_weights_config.json")["config"]
        constants = members.json("data/constants/model_constants_config.json")["config"]
        for spec in self._signature["input_specs"]:
            [(kind, content)] = spec.items()
            if kind == "user_input" and "as_tensor" in content["arg"]:
                arguments.append(content["arg"]["as_tensor"]["name"])
                continue
            if kind not in _STORED:
                raise ForeignError(f"{self.path}: has an input of kind {kind}; only tensors may go in")
            name = content[_STORED[kind]]
            weight = name in weights and kind != "tensor_constant"
            table, folder = (weights, "data/weights") if weight else (constants, "data/constants")
            tensor = members.tensor(folder, table[name], name, masks=kind != "parameter")
            self.names[content["arg"]["name"]] = self._store(tensor)
        return arguments

    def _store(self, tensor: Tensor) -> str:
        """Keep a tensor; return its name. A complex one is kept as pairs of real numbers, as weights files are real."""
        name = f"w{len(self.tensors)}"
        if not tensor.is_complex():
            self.tensors[name] = tensor
            return name
        self.tensors[name] = torch.view_as_real(tensor)
        step = {"op": "torch.ops.aten.view_as_complex.default", "args": [{"value": name}], "kwargs": {}}
        self._first.append({**step, "out": [f"{name}_complex"], "single": True})
        return f"{name}_complex"

    def results(self) -> list[str]:
        """Return the names of the results; a ForeignError unless they are tensors computed by the program."""
        specs, outputs = self._signature["output_specs"], self._graph["outputs"]
        if any("user_output" not in spec for spec in specs) or any("as_tensor" not in output for output in outputs):
            raise ForeignError(f"{self.path}: returns something other than tensors, or changes its inputs")
        return [output["as_tensor"]["name"] for output in outputs]

    def sizes(self, value: str) -> list[Mapping[str, Any]]:
        """Return the sizes of a tensor as the program's JSON has them, that of its rows first."""
        return self._graph["tensor_values"][value]["sizes"]

    def dtype(self, value: str) -> str | None:
        """Return the dtype of a tensor; None if it is not served."""
        return SCALAR_TYPES.get(self._graph["tensor_values"][value]["dtype"])

    def shape(self, value: str, what: str, stated: Sequence[Any] | None = None) -> Shape:
        """Return the shape of one row of a tensor, with free axes named by the user or by default names.

        Args:
            value: the tensor.
            what: what it is in messages: `states`, or a condition.
            stated: the user's shape.

        Raises:
            ForeignError: the shape stated does not fit.
        """
        sizes = self.sizes(value)[1:]
        if stated is not None and len(stated) != len(sizes):
            raise ForeignError(
                f"{self.path}: {what} has {len(sizes)} axes besides rows; the shape given is {list(stated)}"
            )
        free = sum("as_int" not in size for size in sizes)
        usual = iter(_STATE_AXES.get(free, ()) if what == "states" else ())
        shape: list[int | str] = []
        for place, size in enumerate(sizes):
            if "as_int" in size:
                shape.append(size["as_int"])
                continue
            default = next(usual, None) or self.free.fresh()
            chosen = None if stated is None else stated[place]
            if chosen is not None and not isinstance(chosen, str):
                raise ForeignError(f"{self.path}: dimension {place + 1} of its {what} is free; name it, as in 80xT")
            shape.append(self.free.axis(what, place + 1, size, chosen or default, chosen=chosen is not None))
        return tuple(shape)

    def row_limits(self, values: Sequence[str]) -> list[int | None]:
        """Return the minimum and maximum rows of a call, from the first sizes of all arguments and results."""
        if not all(self.sizes(value) for value in values):
            raise ForeignError(
                f"{self.path}: takes or returns a single number; each tensor must have one row for each sample"
            )
        sizes = [self.sizes(value)[0] for value in values]
        fixed = {size.get("as_int") for size in sizes}
        if len(fixed) == 1 and None not in fixed:
            return [fixed.pop()] * 2
        rows = multiple_of(sizes[0])
        if rows is None or rows[0] != 1 or any(multiple_of(size) != rows for size in sizes):
            raise ForeignError(
                f"{self.path}: the first dimension is not the same number of rows in all inputs and outputs; "
                "export with dynamic_shapes={'x': {0: Dim('rows')}, 't': {0: Dim('rows')}}"
            )
        limits = self._constraints.get(rows[1], {})
        low, high = limits.get("min_val"), limits.get("max_val")
        least = max(1, low or 1)
        # Exporters write 2 to mean only that one row is not a special case.
        return [1 if least == 2 else least, None if high is None or high >= _UNBOUNDED_ROWS else high]

    def body(self) -> dict[str, Any]:
        """Return the steps and the tensors in the form of a card."""
        steps = [step for number, node in enumerate(self._graph["nodes"]) if (step := self._step(number, node))]
        tensors = {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in self.tensors.items()
        }
        return {"tensors": tensors, "steps": [*self._first, *steps]}

    def unused(self, steps: Sequence[Mapping[str, Any]], results: Sequence[str], required: Sequence[str]) -> list[str]:
        """Return the arguments on which no result depends.

        Raises:
            ForeignError: a required one is among them. An export merges two arguments that were given the same tensor,
                and the second has no effect.
        """
        used = {self.names[name] for name in results}
        for step in reversed(steps):
            if used.intersection(step["out"]) and not step["op"].startswith("torch.ops.aten.sym_"):
                used |= names_in([*step["args"], *step["kwargs"].values()])
        names = [self.names[argument] for argument in self.arguments]
        unused = [name.removeprefix("c_") for name in names if name not in used]
        for name in unused:
            if name in required:
                raise ForeignError(
                    f"{self.path}: the result does not depend on {name}; if one tensor was given for two arguments of "
                    "the export, such as f(x, t, t), export it again with a tensor for each"
                )
        return unused

    def _step(self, number: int, node: Mapping[str, Any]) -> dict[str, Any] | None:
        target = node["target"]
        if _CHECKS.fullmatch(target):
            return None
        try:
            operation(target)
        except ValueError as error:
            raise ForeignError(f"{self.path}: node {number}: {error}") from None
        args = [self._value(entry["arg"]) for entry in node["inputs"] if entry.get("kind") != 2]
        kwargs = {entry["name"]: self._value(entry["arg"]) for entry in node["inputs"] if entry.get("kind") == 2}
        out, single = self._results(node["outputs"], number)
        return {"op": target, "args": args, "kwargs": kwargs, "out": out, "single": single}

    def _results(self, outputs: list[Mapping[str, Any]], number: int) -> tuple[list[str], bool]:
        single = len(outputs) == 1 and "as_tensors" not in outputs[0]
        values: list[str] = []
        for output in outputs:
            [(kind, content)] = output.items()
            if kind == "as_tensors":
                values += [tensor["name"] for tensor in content]
            elif kind == "as_tensor":
                values.append(content["name"])
            elif kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
                values.append(content["as_name"])
            else:
                raise ForeignError(f"{self.path}: node {number} has a result of kind {kind[:40]}")
        names = [f"v{number}_{k}" for k in range(len(values))]
        self.names.update(zip(values, names, strict=True))
        return names, single

    def _value(self, argument: Mapping[str, Any]) -> Any:
        [(kind, content)] = argument.items()
        if kind in _LISTS:
            return [self._value({kind.removesuffix("s"): item}) for item in content]
        match kind:
            case "as_float" if isinstance(content, str):  # JSON cannot represent it
                return {"number": content}
            case _ if kind in _PLAIN:
                return content
            case "as_none" | "as_layout":  # strided, as every tensor here
                return None
            case "as_tensor":
                return {"value": self.names[content["name"]]}
            case "as_name":
                return {"value": self.names[content]}
            case "as_optional_tensor" | "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._value(content)
            case "as_scalar_type" if name := (SCALAR_TYPES | COMPLEX_TYPES).get(content):
                return {"dtype": name}
            case "as_complex":
                return {"complex": [content["real"], content["imag"]]}
            case "as_device":
                return {"device": True}
            case "as_memory_format" if content in _MEMORY_FORMATS:
                return {"format": _MEMORY_FORMATS[content]}
        raise ForeignError(f"{self.path}: an argument of kind {kind[:40]} may not be in a program")
