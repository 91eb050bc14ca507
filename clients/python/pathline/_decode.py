"""Decoding of responses, which are npz, into results.

An npz has the arrays, and everything else in an entry `meta`, as UTF-8 JSON. Nothing is ever unpickled, and no array is
allocated that the received bytes cannot fill.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pathline._request import Request, SampleRequest
from pathline._response import MAX_BYTES
from pathline._results import (
    ArrayResult,
    Failure,
    Latency,
    SampleResult,
    Trace,
)
from pathline._typed import member_of, parsed, typed, understood
from pathline.errors import ProtocolError

T = TypeVar("T")
R = TypeVar("R", bound=ArrayResult)

MEDIA_TYPE = "application/x-npz"
_ELSEWHERE = {"shape", "saved", "nfe_per_sample"}
"""Members of a response that a result has in its arrays."""


def decode_npz(content: bytes, request: SampleRequest) -> SampleResult:
    """Turn the bytes of a response into a result and check that it belongs to this request.

    Raises:
        ProtocolError: It is damaged or incomplete, or belongs to another request.
    """
    return read(content, lambda entries, meta: _result(entries, meta, request))


def decode_replay(content: bytes, request: Request) -> SampleResult:
    """Turn the bytes of a replay into a result; what was requested is in the earlier response.

    Raises:
        ProtocolError: It is damaged or incomplete.
    """

    def build(entries: Mapping[str, np.ndarray], meta: Any) -> SampleResult:
        seed, first = int(member_of(meta, "seed")), int(member_of(meta, "first_index"))
        count, model = len(member_of(entries, "samples")), str(member_of(meta, "model"))
        return _result(entries, meta, SampleRequest(model, "sample", {}, b"", "", request.url, count, seed, first, 1.0))

    return read(content, build)


def read(content: bytes, build: Callable[[Mapping[str, np.ndarray], Any], T]) -> T:
    """Build a result from the arrays and the metadata of a response.

    Raises:
        ProtocolError: It is damaged or incomplete.
    """
    with understood(f"the response of {len(content)} bytes"):
        arrays = _entries(content)
        return build(arrays, parsed(member_of(arrays, "meta").tobytes()))


def _entries(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
            raise ValueError(f"it unpacks to more than {MAX_BYTES:,} bytes; ask for fewer samples at a time")
        return {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    content = archive.read(info)  # compares the checksum too
    size, start = (2, 10) if content[6:7] == b"\x01" else (4, 12)
    start += int.from_bytes(content[start - size : start], "little")
    shape, fortran, dtype = _header(content[:start])
    if dtype.hasobject or start + math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"entry {info.filename!r} is not a plain array of shape {shape}")
    # Copied, so that it can be written to and does not keep the rest alive.
    array = np.frombuffer(content, np.uint8)[start:].view(dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy(order="K")


@lru_cache(maxsize=256)
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse the head of a .npy file; cached, as parsing takes longer than reading a few hundred samples."""
    file = io.BytesIO(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return readers[np.lib.format.read_magic(file)](file)


def built(kind: type[R], arrays: Mapping[str, np.ndarray], meta: Any, **own: Any) -> R:
    """Build a result, whose fields are arrays and members of a response; errors and other arguments as for `typed`."""
    failed = tuple(typed(Failure, each) for each in member_of(meta, "failed", "list"))
    member_of(member_of(meta, "solver", "Mapping"), "text", "str")
    return typed(
        kind, meta, arrays, failed=failed, latency=typed(Latency, member_of(meta, "latency", "Mapping")), **own
    )


def _result(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any], request: SampleRequest) -> SampleResult:
    """Build a result from the arrays and the metadata of a response.

    Raises:
        ProtocolError: Something is missing, or it belongs to another request.
    """
    _check_request(meta, request)
    for name, kinds in {"samples": "f", "nfe": "iu", "t": "f", "status": "U"}.items():
        array = member_of(entries, name)
        if array.shape[:1] != (request.num_samples,) or (array.ndim > 1 and name != "samples"):
            raise ProtocolError(f"{name} has shape {array.shape}, but {request.num_samples} samples were requested")
        if array.dtype.kind not in kinds:
            raise ProtocolError(f"{name} is an array of {array.dtype}")
    names = {each.name for each in fields(SampleResult)}
    return built(
        SampleResult,
        entries,
        meta,
        nfe_per_sample=entries["nfe"].astype(np.int64, copy=False),
        status_per_sample=entries["status"],
        trace=_trace(entries, meta),
        saved_t=np.asarray(meta["saved"]["t"], np.float64) if "saved" in entries else None,
        page=(request.url, request.settings),
        extra={name: value for name, value in meta.items() if name not in names | _ELSEWHERE},
    )


def _check_request(meta: Any, request: SampleRequest) -> None:
    requested = {"model": request.model, "seed": request.seed, "first_index": request.first_index}
    for key, expected in requested.items():
        found = meta.get(key, expected) if key == "first_index" else member_of(meta, key)
        if found != expected:
            raise ProtocolError(f"the response is for {key}={found!r}, but {key}={expected!r} was requested")


def _trace(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Trace:
    kinds = {"sample": np.int64, "t": np.float64, "h": np.float64, "error": np.float64, "accepted": np.bool_}
    columns = {name: np.asarray(entries.get(f"trace_{name}", ()), dtype=kind) for name, kind in kinds.items()}
    if len({len(column) for column in columns.values()}) != 1:
        raise ProtocolError(f"the trace has columns of different length: { {k: len(c) for k, c in columns.items()} }")
    summary = meta.get("trace")
    quantiles = (summary.get("quantiles") if isinstance(summary, dict) else None) or {}
    return Trace(**columns, quantiles={name: np.asarray(value, np.float64) for name, value in quantiles.items()})


def states_of(rows: Sequence[Any], shape: Sequence[int] | None = None) -> np.ndarray:
    """Return rows of states as float64; null (a state that is not finite) becomes NaN."""
    known = next((np.asarray(row, np.float64) for row in rows if row is not None), None)
    event = tuple(shape[1:]) if shape is not None else () if known is None else known.shape
    gap = np.full(event, np.nan)
    return np.array([gap if row is None else row for row in rows], np.float64).reshape(len(rows), *event)
