"""ArrayResponse: named arrays and their description, with one writer for each format: JSON, npz, npy, PNG.

A writer yields pieces that can be sent as they come. A piece holds at most about 32,000 numbers of JSON, so making one
never keeps other requests waiting for long.
"""

import hashlib
import io
import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from models import pictures

Array = NDArray[Any]
Pieces = Iterator[bytes | memoryview]

NUMBERS_PER_PIECE = 32_000
JSON, NPZ = "application/json", "application/x-npz"

_BYTES_PER_PIECE = 1 << 20
_SMALL_PIECE = 1 << 14  # bytes; smaller pieces of JSON are joined
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same response gives the same bytes
_BINARY_ONLY = frozenset({"nfe", "t", "status"})  # arrays that JSON only summarises in its head
_STATES = {"samples": ("samples", 1), "saved": ("states", 2), "x0": ("x0", 1)}
"""Arrays of states: the JSON member, and the axes before one state. A state that is not finite is null as a whole."""
_AXES = dict(_STATES.values())


@dataclass
class ArrayResponse:
    """A successful response, for any format.

    Attributes:
        document: the JSON members in their order, arrays among them; last the `latency`, completed by the writing.
        arrays: every array by its name in an npz archive: those of the document, and `nfe`, `t` and `status` (n,).
        elapsed: returns the seconds since the request arrived.
        limits: lowest and highest value of the samples if the model knows them, for pictures.
        numbers: the count of numbers to write in the document.
    """

    document: Mapping[str, Any]
    arrays: Mapping[str, Array]
    elapsed: Callable[[], float]
    limits: tuple[float, float] | None = None
    numbers: int = field(default=0, init=False)

    @classmethod
    def of(cls, document: Mapping[str, Any], elapsed: Callable[[], float]) -> Self:
        """Return the response whose arrays are those among the members of its document."""
        return cls(
            document, {name: value for name, value in document.items() if isinstance(value, np.ndarray)}, elapsed
        )

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if name not in _BINARY_ONLY:
                self.numbers += array.size

    def parted(self) -> tuple[dict[str, Any], Callable[[], dict[str, float]]]:
        """Return the document without its latency, and the function that completes this after the writing."""
        begun, document = time.perf_counter(), dict(self.document)
        seconds = document.pop("latency")
        return document, lambda: seconds | {"encode_s": time.perf_counter() - begun, "total_s": self.elapsed()}


@dataclass(frozen=True)
class Encoder:
    """One format.

    Attributes:
        media_type: its media type, as in `Accept`.
        encode: response -> pieces.
        bytes_per_number: float32 and float64 -> maximum bytes of one number of a sample.
        bytes_per_step: maximum bytes of one attempted step in the trace.
        bytes_per_sample: maximum bytes of everything else about one sample (status, t and NFE; its failure).
        check: (num_samples, shape) -> None; raises `PictureError` for samples that the format cannot show.
        max_bytes: (num_samples, shape) -> maximum bytes of the whole, for formats that do not store single numbers.
        slow: whether even a small response takes milliseconds, and is therefore written in a worker thread.
        bytes_per_list: maximum bytes of a list besides its items.
        whole: whether the whole response is in memory before any of it is sent.
        followed: whether saved states are also sent on the way, before the response.
        headers: first piece -> headers that describe it; or None.
        bare: whether it contains only samples, so that what a replay needs goes into a header.
    """

    media_type: str
    encode: Callable[[ArrayResponse], Pieces]
    bytes_per_number: Mapping[str, int]
    bytes_per_step: int
    bytes_per_sample: int
    check: Callable[[int, Sequence[int]], None] | None = None
    max_bytes: Callable[[int, Sequence[int]], int] | None = None
    slow: bool = False
    bytes_per_list: int = 0
    whole: bool = False
    followed: bool = False
    headers: Callable[[bytes | memoryview], Mapping[str, str]] | None = None
    bare: bool = False

    def array_bytes(self, shape: Sequence[int], dtype: str) -> int:
        """Return the maximum bytes of an array of states."""
        lists = sum(math.prod(shape[:k]) for k in range(len(shape))) if self.bytes_per_list else 0
        return math.prod(shape) * self.bytes_per_number[dtype] + lists * self.bytes_per_list


def _json(response: ArrayResponse) -> Pieces:
    """Return the JSON document; `latency` comes last, so that it knows how long the writing took."""
    if response.numbers <= NUMBERS_PER_PIECE and _all_finite(response.arrays):
        document, latency = response.parted()
        text = orjson.dumps(document, default=np.ascontiguousarray, option=orjson.OPT_SERIALIZE_NUMPY)
        return iter((b'%b,"latency":%b}' % (text[:-1], orjson.dumps(latency())),))  # in one go, which is faster
    return _json_pieces(response)


def _json_pieces(response: ArrayResponse) -> Pieces:
    document, latency = response.parted()
    yield from _members(document)
    yield b',"latency":' + orjson.dumps(latency()) + b"}"


def _all_finite(arrays: Mapping[str, Array]) -> bool:
    for name in _STATES:
        if name in arrays and not np.logical_and.reduce(np.isfinite(arrays[name]), axis=None):
            return False
    return True


def _dumps(value: Any) -> bytes:
    """Return JSON in which numbers that are not finite are null."""
    return orjson.dumps(value, default=np.ascontiguousarray, option=orjson.OPT_SERIALIZE_NUMPY)


def _members(document: Mapping[str, Any]) -> Pieces:
    """Yield a document without its closing brace: arrays in pieces, the rest together."""
    text, between = bytearray(b"{"), b""
    for name, value in document.items():
        text += between + b'"%s":' % name.encode()
        for piece in _value(name, value):
            text += piece
            if len(text) >= _SMALL_PIECE:
                yield bytes(text)
                text.clear()
        between = b","
    yield bytes(text)


def _value(name: str, value: Any) -> Pieces:
    if isinstance(value, np.ndarray):
        yield from array_json(value, _AXES.get(name, 0))
    elif isinstance(value, dict) and any(isinstance(member, np.ndarray) for member in value.values()):
        yield from _members(value)
        yield b"}"
    else:
        yield _dumps(value)


def array_json(array: Array, axes: int = 0) -> Pieces:
    """Yield an array (n, ...) as JSON.

    Args:
        array: its numbers.
        axes: for states, the number of axes before one state, which is null if any of its numbers is not finite: 1 for
            (n, *shape), 2 for (n, m, *shape). With 0, each number that is not finite is null.
    """
    rows = max(1, NUMBERS_PER_PIECE * len(array) // max(1, array.size))
    yield b"["
    for begin in range(0, len(array), rows):
        part = np.ascontiguousarray(array[begin : begin + rows])
        yield (b"," if begin else b"") + _dumps(_nulled(part, axes) if axes else part)[1:-1]
    yield b"]"


def _nulled(states: Array, axes: int) -> Any:
    """Return the states as they are, or as nested lists with None in place of those that are not finite."""
    if np.isfinite(states).all():
        return states
    if axes == 0:
        return None
    return [_nulled(state, axes - 1) for state in states]


def _npz(response: ArrayResponse) -> Pieces:
    """Yield an uncompressed npz archive; `meta` is the rest of the JSON document as UTF-8 in a uint8 array."""
    document, latency = response.parted()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in response.arrays.items():
            _add(archive, name, array)
        meta = _without_arrays(document) | {"latency": latency()}
        _add(archive, "meta", np.frombuffer(orjson.dumps(meta), dtype=np.uint8))
    yield from slices(memoryview(buffer.getvalue()))  # no copy; a buffer that is still in use cannot be closed


def _without_arrays(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not arrays; an object of arrays only is left out."""
    members: dict[str, Any] = {}
    for name, value in document.items():
        member = _without_arrays(value) if isinstance(value, dict) else value
        if not isinstance(member, np.ndarray) and (member != {} or value == {}):
            members[name] = member
    return members


def _add(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE), "w", force_zip64=True) as entry:
        entry.write(_header(array))
        entry.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _npy(response: ArrayResponse) -> Pieces:
    """Yield only the samples, straight from their memory."""
    samples = response.arrays["samples"]
    yield _header(samples)
    yield from slices(np.ascontiguousarray(samples).reshape(-1).view(np.uint8).data)


def _png(response: ArrayResponse) -> Pieces:
    """Yield a picture of the samples."""
    yield from slices(memoryview(pictures.draw(response.arrays["samples"], response.limits)))


def _header(array: Array) -> bytes:
    buffer = io.BytesIO()
    layout = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


def digest_of(array: Array) -> str:
    """Return the hash of an array's bytes in C order."""
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return f"sha256:{hashlib.sha256(flat.data.cast('B') if flat.size else b'').hexdigest()}"


def slices(view: memoryview) -> Pieces:
    """Yield the bytes in pieces of at most 1 MiB."""
    for begin in range(0, len(view), _BYTES_PER_PIECE):
        yield view[begin : begin + _BYTES_PER_PIECE]


BINARY_BYTES = {"float32": 4, "float64": 8}
"""Bytes of a number in memory, by dtype."""

# The longest numbers: -0.00000631841071 and -2.2250738585072014e-308, each with its comma.
TEXT_BYTES = {"float32": 18, "float64": 25}
"""Maximum bytes of a number in JSON, by dtype."""

LIST_BYTES = 3
"""Brackets of a list in JSON, and its comma."""

ENCODERS: dict[str, Encoder] = {
    encoder.media_type: encoder
    for encoder in (
        Encoder(JSON, _json, TEXT_BYTES, 110, 100, bytes_per_list=LIST_BYTES),
        Encoder(NPZ, _npz, BINARY_BYTES, 40, 200, whole=True),
        Encoder("application/x-npy", _npy, BINARY_BYTES, 0, 0, bare=True),
        Encoder(
            "image/png", _png, BINARY_BYTES, 0, 0, pictures.check, pictures.max_bytes, slow=True, whole=True, bare=True
        ),
    )
}
"""The formats by media type, the default first."""

ARRAY_FORMATS = (JSON, NPZ)
"""Media types for arrays of any kind, not only samples; the default first."""
