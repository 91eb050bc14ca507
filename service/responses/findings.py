"""Answers of named arrays, as JSON and npz."""

import io
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from service.engine.job import JobResult
from service.errors import invalid
from service.registry.served import Served
from service.requests.sizes import head_bytes
from service.responses.answers import outcome
from service.responses.encoders import ENCODERS, NUMBERS_A_PIECE, Pieces, add_array, slices, states_json
from service.responses.traces import Array
from solvers.plan import Plan

JSON, NPZ = "application/json", "application/x-npz"
_STATES = ("x0",)  # a state is null in JSON as a whole, as in answers with samples


@dataclass(frozen=True)
class Findings:
    """What was found, for both formats.

    Attributes:
        head: the members that are no large arrays, in the order in which they appear.
        arrays: the others; None is left out. Numbers that are not finite are null in JSON.
        timings: seconds `queue_s`, `solve_s` and `network_s`.
        elapsed: seconds since the request came.
    """

    head: Mapping[str, Any]
    arrays: Mapping[str, Array | None]
    elapsed: Callable[[], float]
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """How many numbers there are to encode."""
        return sum(array.size for array in self.arrays.values() if array is not None)

    def latency(self, encode_s: float) -> dict[str, float]:
        """Return the `latency` member, given the seconds spent on encoding so far."""
        return {**self.timings, "encode_s": encode_s, "total_s": self.elapsed()}


def head_of(model: Served, result: JobResult, solver: Mapping[str, object], deterministic: bool) -> dict[str, Any]:
    """Return the members that all answers begin with."""
    return {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        "deterministic": deterministic,
        "solver": solver,
        **outcome(result),
    }


def _json(found: Findings) -> Pieces:
    begun = time.perf_counter()
    yield orjson.dumps(found.head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
    for name, array in found.arrays.items():
        if array is not None:
            yield b',"%s":' % name.encode()
            yield from states_json(array) if name in _STATES else _numbers(array)
    yield b',"latency":' + orjson.dumps(found.latency(time.perf_counter() - begun)) + b"}"


def _numbers(array: Array) -> Pieces:
    rows = max(1, NUMBERS_A_PIECE * len(array) // max(1, array.size))
    yield b"["
    for begin in range(0, len(array), rows):
        part = np.ascontiguousarray(array[begin : begin + rows])
        yield (b"," if begin else b"") + orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]"


def _npz(found: Findings) -> Pieces:
    begun = time.perf_counter()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in found.arrays.items():
            if array is not None:
                add_array(archive, name, array)
        meta = {**found.head, "latency": found.latency(time.perf_counter() - begun)}
        add_array(archive, "meta", np.frombuffer(orjson.dumps(meta, option=orjson.OPT_SERIALIZE_NUMPY), dtype=np.uint8))
    yield from slices(buffer.getbuffer())


FORMATS: dict[str, Callable[[Findings], Pieces]] = {JSON: _json, NPZ: _npz}
"""The formats by media type, the default first."""


def check_size(member: str, shapes: Sequence[Sequence[int]], dtype: str, solve: Plan, media: str, limit: int) -> int:
    """Refuse an answer of arrays that may be larger than the limit.

    Args:
        member: what to ask for less of.
        shapes: of the arrays; the first axis are samples.
        dtype: of the largest.
        solve: what the answer says it was solved with.
        media: the format.
        limit: bytes of an answer.

    Returns:
        Bytes of memory that the answer takes while it is sent.

    Raises:
        ProblemError: 422 with the predicted and the allowed number of bytes.
    """
    encoder = ENCODERS[media]
    arrays = sum(encoder.array_bytes(shape, dtype) for shape in shapes)
    predicted = arrays + head_bytes(solve.settings) + shapes[0][0] * encoder.bytes_a_sample
    if predicted > limit:
        raise invalid(
            member,
            f"the answer may take {predicted:,} bytes as {media}, over the limit of {limit:,} of this service; send or "
            f"ask for fewer {member}",
            predicted_bytes=predicted,
            limit_bytes=limit,
        )
    return predicted if encoder.whole else 0
