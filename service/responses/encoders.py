"""Answers as bytes: JSON, npz, npy, PNG. One encoder a media type; each yields pieces that can be sent as they come.

A piece holds at most about 32,000 numbers of JSON, so whoever encodes one never keeps others waiting for long.
"""

import io
import math
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from models import pictures
from service.responses.answers import Answer
from service.responses.traces import COLUMNS, Array

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
