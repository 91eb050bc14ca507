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

from pathline._request import Request
from pathline._results import (
    ArrayResult,
    Failure,
    Latency,
    SampleResult,
    Trace,
)
from pathline._typed import member_of, parsed, typed, understood
from pathline._wire import MAX_BYTES
from pathline.errors import ProtocolError

T = TypeVar("T")
R = TypeVar("R", bound=ArrayResult)

MEDIA_TYPE = "application/x-npz"
_ELSEWHERE = {"shape", "saved", "nfe_per_sample"}
"""Members of a response that a result has in its arrays."""


def decode_npz(content: bytes, request: Request) -> SampleResult:
    """Turn the bytes of a response into a result and check that it belongs to this request.

    Raises:
        ProtocolError: It is damaged or incomplete, or belongs to another request.
    """
    return read(content, lambda arrays, meta: _result(arrays, meta, request))


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
    failed = tuple(typed(Failure, failure) for failure in member_of(meta, "failed", "list"))
    member_of(member_of(meta, "solver", "Mapping"), "text", "str")
    return typed(
        kind, meta, arrays, failed=failed, latency=typed(Latency, member_of(meta, "latency", "Mapping")), **own
    )


def _result(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], request: Request) -> SampleResult:
    """Build a result from the arrays and the metadata of a response.

    Raises:
        ProtocolError: Something is missing, or it belongs to another request.
    """
    requested = {"model": request.model or None, "seed": request.seed, "first_index": request.first_index}
    for key, expected in requested.items():
        value = meta.get(key, expected) if key == "first_index" else member_of(meta, key)
        if expected is not None and value != expected:
            raise ProtocolError(f"the response is for {key}={value!r}, but {key}={expected!r} was requested")
    count = len(member_of(arrays, "samples")) if request.num_samples is None else request.num_samples
    for name, kinds in {"samples": "f", "nfe": "iu", "t": "f", "status": "U"}.items():
        array = member_of(arrays, name)
        if array.shape[:1] != (count,) or (array.ndim > 1 and name != "samples"):
            raise ProtocolError(f"{name} has shape {array.shape}, but {count} samples were requested")
        if array.dtype.kind not in kinds:
            raise ProtocolError(f"{name} is an array of {array.dtype}")
    names = {entry.name for entry in fields(SampleResult)}
    return built(
        SampleResult,
        arrays,
        meta,
        nfe_per_sample=arrays["nfe"].astype(np.int64, copy=False),
        status_per_sample=arrays["status"],
        trace=_trace(arrays, meta),
        saved_t=np.asarray(meta["saved"]["t"], np.float64) if "saved" in arrays else None,
        page=(request.url, request.settings),
        extra={name: value for name, value in meta.items() if name not in names | _ELSEWHERE},
    )


def _trace(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Trace:
    kinds = {"sample": np.int64, "t": np.float64, "h": np.float64, "error": np.float64, "accepted": np.bool_}
    columns = {name: np.asarray(arrays.get(f"trace_{name}", ()), dtype=kind) for name, kind in kinds.items()}
    if len({len(column) for column in columns.values()}) != 1:
        raise ProtocolError(f"the trace has columns of different length: { {k: len(c) for k, c in columns.items()} }")
    summary = meta.get("trace")
    quantiles = (summary.get("quantiles") if isinstance(summary, dict) else None) or {}
    return Trace(**columns, quantiles={name: np.asarray(value, np.float64) for name, value in quantiles.items()})


def states_of(rows: Sequence[Any]) -> np.ndarray:
    """Return rows of states as float64; null (a state that is not finite) becomes NaN."""
    event = next((np.shape(row) for row in rows if row is not None), ())
    gap = np.full(event, np.nan)
    return np.array([gap if row is None else row for row in rows], np.float64).reshape(len(rows), *event)
