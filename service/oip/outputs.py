"""Output tensors: which ones a request selects, and the response made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.errors import invalid
from service.oip.schemas import InferRequest
from service.oip.tensors import BINARY, HEADER, datatype_of, to_bytes
from service.requests.schemas import SampleRequest
from service.responses.arrays import BINARY_BYTES, JSON, TEXT_BYTES, ArrayResponse, Encoder, Pieces, slices
from service.responses.samples import COLUMNS

ALWAYS = ("samples", "nfe", "t", "status")
TRACE = tuple(f"trace_{name}" for name in COLUMNS)

_PLACED = ("model", "version", "nfe")
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


@dataclass(frozen=True)
class SelectedOutputs:
    """The selected outputs in order, each with a flag: whether its bytes follow the JSON part."""

    outputs: tuple[tuple[str, bool], ...]
    request_id: str | None

    @property
    def encoder(self) -> Encoder:
        """The format of these outputs; its size is predicted as text if any output is text."""
        binary = self.binary
        return Encoder(
            BINARY if binary else JSON,
            lambda response: encode(response, self),
            BINARY_BYTES if all(follows for _, follows in self.outputs) else TEXT_BYTES,
            110,
            100,
            whole=True,
            headers=(lambda first: {HEADER: str(len(first))}) if binary else None,
        )

    @property
    def binary(self) -> bool:
        """Whether any bytes follow the JSON part."""
        return any(follows for _, follows in self.outputs)


def select_outputs(request: InferRequest, sample: SampleRequest) -> SelectedOutputs:
    """Return the outputs to respond with: those the request names, or else all that are available.

    Raises:
        ProblemError: An output does not exist or not for this request, or a parameter is unknown.
    """
    some = {"saved": sample.saved_times, "log_prob": sample.log_prob}
    available = [*ALWAYS, *(name for name in some if some[name]), *(TRACE if sample.trace != "none" else [])]
    default = _flag(request.parameters, "binary_data_output", "the request", False)
    outputs: dict[str, bool] = {}
    for output in request.outputs:
        name = output.name
        if name not in available:
            needs = {"saved": "; it needs the input save_at", "log_prob": "; it needs the parameter log_prob"}
            advice = needs.get(name, "")
            advice = "; the parameter trace is none" if name in TRACE else advice
            raise invalid("outputs", f"there is no output {name[:60]!r}{advice}; outputs: {', '.join(available)}")
        if name in outputs:
            raise invalid("outputs", f"output {name!r} was requested twice")
        for parameter in output.parameters:
            if parameter != "binary_data":
                raise invalid(
                    "outputs", f"output {name!r} has a parameter {parameter[:60]!r}; only binary_data is supported"
                )
        outputs[name] = _flag(output.parameters, "binary_data", f"output {name!r}", default)
    chosen = outputs or dict.fromkeys(available, default)
    return SelectedOutputs(tuple(chosen.items()), request.id)


def encode(response: ArrayResponse, selected: SelectedOutputs) -> Pieces:
    """Yield the JSON part as one piece, then the bytes of the outputs that follow it."""
    described: list[dict[str, Any]] = []
    rest: list[bytes | memoryview] = []
    for name, follows in selected.outputs:
        array = response.arrays[name]
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array)}
        if follows:
            content = to_bytes(array)
            rest.append(content)
            entry["parameters"] = {"binary_data_size": len(content)}
        else:
            text = array.dtype.kind == "U"
            entry["data"] = array.tolist() if text else np.ascontiguousarray(array).reshape(-1)
        described.append(entry)
    head = response.document
    document = {"model_name": head["model"], "model_version": str(head["version"])}
    document |= {} if selected.request_id is None else {"id": selected.request_id}
    document |= {"parameters": _scalars(head), "outputs": described}
    yield orjson.dumps(document, option=_OPTIONS)
    for part in rest:
        yield from slices(memoryview(part))


def _scalars(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a response that are no arrays and have no other place, objects as one parameter each."""
    scalars = {name: value for name, value in head.items() if isinstance(value, str | int | float)}
    return {name: value for name, value in scalars.items() if name not in _PLACED} | {
        "solver": head["solver"]["name"],
        "failed": len(head["failed"]),
        **{f"budget.{name}": value for name, value in head.get("budget", {}).items()},
    }


def _flag(parameters: dict[str, Any], name: str, where: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(name, f"{name} of {where} must be true or false")
    return value
