"""The output tensors: which there are, which are wanted, and how an answer is written with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.errors import invalid
from service.oip.schemas import InferRequest
from service.oip.tensors import Array, datatype_of, to_bytes
from service.oip.wire import BINARY
from service.requests.schemas import SampleRequest
from service.responses.answers import Answer
from service.responses.encoders import BINARY_BYTES, TEXT_BYTES, Encoder, Pieces, slices
from service.responses.traces import COLUMNS

JSON = "application/json"
ALWAYS = ("samples", "nfe", "t", "status")
TRACE = tuple(f"trace_{name}" for name in COLUMNS)
NAMES = (*ALWAYS, "saved", *TRACE)
"""Every output; `saved` is there with the input save_at, the trace unless the parameter trace is none."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


@dataclass(frozen=True)
class Wanted:
    """Wanted outputs in their order, each with whether its bytes are to follow the JSON part."""

    outputs: tuple[tuple[str, bool], ...]
    request_id: str | None

    @property
    def encoder(self) -> Encoder:
        """What the answer may take at most; numbers in JSON where any output is."""
        numbers = BINARY_BYTES if all(follows for _, follows in self.outputs) else TEXT_BYTES
        return Encoder(
            BINARY if self.binary else JSON, lambda answer: write(answer, self)[1], numbers, 110, 100, whole=True
        )

    @property
    def binary(self) -> bool:
        """Whether any bytes follow the JSON part."""
        return any(follows for _, follows in self.outputs)


def wanted(request: InferRequest, wish: SampleRequest) -> Wanted:
    """Return which outputs to answer with.

    Raises:
        ProblemError: an output that there is not, or not in this request; a parameter that is not known.
    """
    there = [*ALWAYS, *(["saved"] if wish.save_at else []), *(TRACE if wish.trace != "none" else [])]
    default = _flag(request.parameters, "binary_data_output", "the request", False)
    outputs: dict[str, bool] = {}
    for output in request.outputs:
        name = output.name
        if name not in there:
            hint = {"saved": "; it needs the input save_at"} if name == "saved" else {}
            advice = hint.get(name, "; the trace is none" if name in TRACE else "")
            raise invalid("outputs", f"there is no output {name[:60]!r}{advice}; there are {', '.join(there)}")
        if name in outputs:
            raise invalid("outputs", f"output {name!r} was asked for twice")
        for parameter in output.parameters:
            if parameter != "binary_data":
                raise invalid(
                    "outputs", f"output {name!r} has a parameter {parameter[:60]!r}; only binary_data is known here"
                )
        outputs[name] = _flag(output.parameters, "binary_data", f"output {name!r}", default)
    chosen = outputs or dict.fromkeys(there, default)
    return Wanted(tuple(chosen.items()), request.id)


def write(answer: Answer, wish: Wanted) -> tuple[int, Pieces]:
    """Return the length of the JSON part and the pieces of the body."""
    tensors = _tensors(answer)
    described: list[dict[str, Any]] = []
    rest: list[bytes | memoryview] = []
    for name, follows in wish.outputs:
        array = tensors[name]
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array)}
        if follows:
            content = to_bytes(array)
            rest.append(content)
            entry["parameters"] = {"binary_data_size": len(content)}
        else:
            text = array.dtype.kind == "U"
            entry["data"] = array.tolist() if text else np.ascontiguousarray(array).reshape(-1)
        described.append(entry)
    head = answer.head
    document = {"model_name": head["model"], "model_version": str(head["version"])}
    document |= {} if wish.request_id is None else {"id": wish.request_id}
    document |= {"parameters": _scalars(head), "outputs": described}
    text = orjson.dumps(document, option=_OPTIONS)
    return len(text), _pieces([text, *rest])


def _pieces(parts: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for part in parts:
        yield from slices(memoryview(part))


def _tensors(answer: Answer) -> dict[str, Array]:
    tensors: dict[str, Array] = {"samples": answer.samples, "nfe": answer.nfe, "t": answer.t, "status": answer.status}
    if answer.saved is not None:
        tensors["saved"] = answer.saved
    if answer.trace is not None:
        tensors |= {f"trace_{name}": answer.trace.columns[name] for name in COLUMNS}
    return tensors


def _scalars(head: dict[str, Any]) -> dict[str, Any]:
    names = ("checkpoint", "seed", "first_index", "deterministic", "noise", "network_rows", "status", "fallback_from")
    return {name: head[name] for name in names if name in head} | {
        "solver": head["solver"]["name"],
        "failed": len(head["failed"]),
    }


def _flag(parameters: dict[str, Any], name: str, where: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(name, f"{name} of {where} must be true or false")
    return value
