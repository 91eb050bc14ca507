"""Answers as bytes: JSON, npz, npy, PNG. One encoder a media type; each yields pieces that can be sent as they come.

A piece holds at most about 32,000 numbers of JSON, so whoever encodes one never keeps others waiting for long.
"""

import io
import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from models import pictures
from service.engine.job import JobResult
from service.errors import invalid
from service.registry.served import Served
from service.requests.sizes import head_bytes
from service.responses.samples import COLUMNS, Answer, Array, outcome
from solvers.plan import Adaptive, Plan

NUMBERS_A_PIECE = 32_000
_BYTES_A_PIECE = 1 << 20
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same answer gives the same bytes

Pieces = Iterator[bytes | memoryview]


@dataclass(frozen=True)
class Encoder:
    """One format.

    Attributes:
        media_type: what `Accept` asks for.
        encode: answer -> pieces.
        bytes_a_number: float32 and float64 -> the most bytes that one number of a sample can take.
        bytes_a_list: the most bytes of a list beside what is in it.
        bytes_a_step: the most bytes of one attempted step in the trace.
        bytes_a_sample: the most bytes of what else is said of one sample (status, t and NFE; its failure).
        check: (num_samples, shape) -> None; raises `PictureError` for samples that have no such form.
        most_bytes: (num_samples, shape) -> the most bytes of the whole, where no number of bytes a number says it.
        slow: whether even a small answer takes milliseconds, so that it is encoded beside the event loop.
        whole: whether all of an answer is in memory before any of it is sent.
        followed: whether saved states are told on the way too, before the answer.
    """

    media_type: str
    encode: Callable[[Answer], Pieces]
    bytes_a_number: dict[str, int]
    bytes_a_step: int
    bytes_a_sample: int
    check: Callable[[int, Sequence[int]], None] | None = None
    most_bytes: Callable[[int, Sequence[int]], int] | None = None
    slow: bool = False
    bytes_a_list: int = 0
    whole: bool = False
    followed: bool = False

    def array_bytes(self, shape: Sequence[int], dtype: str) -> int:
        """Return the most bytes of an array of states."""
        lists = sum(math.prod(shape[:k]) for k in range(len(shape))) if self.bytes_a_list else 0
        return math.prod(shape) * self.bytes_a_number[dtype] + lists * self.bytes_a_list


def _json(answer: Answer) -> Pieces:
    """Yield the JSON document; `latency` comes last, so that it knows how long the encoding took."""
    begun = time.perf_counter()
    if answer.saved is None and answer.numbers <= NUMBERS_A_PIECE and np.isfinite(answer.samples).all():
        yield _whole(answer)[:-1]  # the same document at once, which is quicker
    else:
        yield from _in_pieces(answer)
    yield b',"latency":' + orjson.dumps(answer.latency(time.perf_counter() - begun)) + b"}"


def _whole(answer: Answer) -> bytes:
    document = answer.head | {"samples": np.ascontiguousarray(answer.samples)}
    if answer.trace is not None:
        trace: dict[str, Any] = {name: np.ascontiguousarray(answer.trace.columns[name]) for name in COLUMNS}
        quantiles = answer.trace.quantiles
        document["trace"] = trace if quantiles is None else trace | {"quantiles": quantiles}
    return orjson.dumps(document, option=_OPTIONS)


def _in_pieces(answer: Answer) -> Pieces:
    yield orjson.dumps(answer.head)[:-1] + b',"samples":'
    yield from states_json(answer.samples)
    if answer.saved is not None:
        yield b',"saved":{"t":' + orjson.dumps(answer.save_at) + b',"states":'
        yield from states_json(answer.saved, depth=2)
        yield b"}"
    if answer.trace is not None:
        yield b',"trace":{'
        for name in COLUMNS:
            yield (b'"%s":' if name == COLUMNS[0] else b',"%s":') % name.encode()
            yield from _numbers(answer.trace.columns[name])
        if answer.trace.quantiles is not None:
            yield b',"quantiles":' + orjson.dumps(answer.trace.quantiles, option=_OPTIONS)
        yield b"}"


def states_json(states: Array, depth: int = 1) -> Pieces:
    """Yield states (n, *shape), or (n, m, *shape) for a depth of 2, as JSON; a state with a NaN is null."""
    rows = max(1, NUMBERS_A_PIECE * len(states) // max(1, states.size))
    yield b"["
    for begin in range(0, len(states), rows):
        part = np.ascontiguousarray(states[begin : begin + rows])
        yield (b"," if begin else b"") + orjson.dumps(_nulled(part, depth), option=_OPTIONS)[1:-1]
    yield b"]"


def _nulled(states: Array, depth: int) -> Any:
    """Return the states as they are, or as nested lists with None in place of those that are not finite."""
    if np.isfinite(states).all():
        return states
    if depth == 0:
        return None
    return [_nulled(state, depth - 1) for state in states]


def _numbers(values: Array) -> Pieces:
    """Yield an array (n,) as JSON; what is not finite is null."""
    yield b"["
    for begin in range(0, len(values), NUMBERS_A_PIECE):
        part = np.ascontiguousarray(values[begin : begin + NUMBERS_A_PIECE])
        yield (b"," if begin else b"") + orjson.dumps(part, option=_OPTIONS)[1:-1]
    yield b"]"


def _npz(answer: Answer) -> Pieces:
    """Yield an uncompressed npz archive; `meta` is the rest of the JSON document as UTF-8 in a uint8 array."""
    begun = time.perf_counter()
    arrays: dict[str, Array] = {"samples": answer.samples, "nfe": answer.nfe, "t": answer.t, "status": answer.status}
    meta = dict(answer.head)
    if answer.saved is not None:
        arrays["saved"] = answer.saved
        meta["saved"] = {"t": answer.save_at}
    if answer.trace is not None:
        arrays |= {f"trace_{name}": answer.trace.columns[name] for name in COLUMNS}
        if answer.trace.quantiles is not None:
            meta["trace"] = {"quantiles": answer.trace.quantiles}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            add_array(archive, name, array)
        meta["latency"] = answer.latency(time.perf_counter() - begun)
        add_array(archive, "meta", np.frombuffer(orjson.dumps(meta, option=_OPTIONS), dtype=np.uint8))
    yield from slices(buffer.getbuffer())


def add_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Write an array into an npz archive."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE), "w", force_zip64=True) as entry:
        entry.write(_header(array))
        entry.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _npy(answer: Answer) -> Pieces:
    """Yield the samples alone, straight from their memory."""
    yield _header(answer.samples)
    yield from slices(np.ascontiguousarray(answer.samples).reshape(-1).view(np.uint8).data)


def _png(answer: Answer) -> Pieces:
    """Yield a picture of the samples alone."""
    yield from slices(memoryview(pictures.draw(answer.samples, answer.limits)))


def _header(array: Array) -> bytes:
    buffer = io.BytesIO()
    layout = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


def slices(view: memoryview) -> Pieces:
    """Yield the bytes in pieces of at most 1 MiB."""
    for begin in range(0, len(view), _BYTES_A_PIECE):
        yield view[begin : begin + _BYTES_A_PIECE]


BINARY_BYTES = {"float32": 4, "float64": 8}
"""Bytes of a number as it lies in memory, by dtype."""

# The longest numbers: -0.00000631841071 and -2.2250738585072014e-308, each with its comma.
TEXT_BYTES = {"float32": 18, "float64": 25}
"""The most bytes of a number in JSON, by dtype."""

LIST_BYTES = 3
"""Brackets of a list in JSON, and its comma."""

ENCODERS: dict[str, Encoder] = {
    encoder.media_type: encoder
    for encoder in (
        Encoder("application/json", _json, TEXT_BYTES, 110, 100, bytes_a_list=LIST_BYTES),
        Encoder("application/x-npz", _npz, BINARY_BYTES, 40, 200, whole=True),
        Encoder("application/x-npy", _npy, BINARY_BYTES, 0, 0),
        Encoder("image/png", _png, BINARY_BYTES, 0, 0, pictures.check, pictures.most_bytes, slow=True, whole=True),
    )
}
"""The formats by media type, the default first."""


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


def check_size(
    member: str, shapes: Sequence[Sequence[int]], dtype: str, solve: Plan | Adaptive, media: str, limit: int
) -> int:
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
