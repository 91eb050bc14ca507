"""Decoding of responses into results, from npz or from plain JSON.

An npz has the arrays, and everything else in an entry `meta`, as UTF-8 JSON. Nothing is ever unpickled, and no array is
allocated that the received bytes cannot fill.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pathline._request import Request, SampleRequest
from pathline._response import MAX_BYTES
from pathline._results import (
    DiagnoseResult,
    EncodeResult,
    Failure,
    Latency,
    LogProbResult,
    SampleResult,
    Trace,
)
from pathline.errors import ProtocolError

T = TypeVar("T")

MEDIA_TYPE = "application/x-npz"
_META = (
    *("model", "version", "checkpoint", "seed", "first_index", "deterministic", "solver", "nfe", "status", "failed"),
    *("latency", "shape", "nfe_per_sample", "trace", "saved", "status_names", "samples"),
    *("budget", "digest", "request", "environment", "digest_matches", "differences"),
)


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
        seed, first = int(_member(meta, "seed")), int(_member(meta, "first_index"))
        count, model = len(_entry(entries, "samples")), str(_member(meta, "model"))
        return _result(entries, meta, SampleRequest(model, "sample", {}, b"", "", request.url, count, seed, first, 1.0))

    return read(content, build)


def read(content: bytes, build: Callable[[Mapping[str, np.ndarray], Any], T]) -> T:
    """Build a result from the arrays and the metadata of a response.

    Raises:
        ProtocolError: It is damaged or incomplete.
    """
    try:
        entries = _entries(content)
        return build(entries, json.loads(_entry(entries, "meta").tobytes()))
    except ProtocolError:
        raise
    except Exception as error:  # whatever damaged bytes raise in zipfile, zlib, numpy and json
        raise ProtocolError(
            f"the response of {len(content)} bytes is not a valid npz ({type(error).__name__}: {error}); "
            "it was damaged on the way, or this is not a Pathline service"
        ) from error


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


def _result(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any], request: SampleRequest) -> SampleResult:
    """Build a result from the arrays and the metadata of a response.

    Raises:
        ProtocolError: Something is missing, or it belongs to another request.
    """
    _check_request(meta, request)
    samples, nfe, t = (_entry(entries, name) for name in ("samples", "nfe", "t"))
    status = _names(_entry(entries, "status"), meta)
    for name, array in {"samples": samples, "nfe": nfe, "t": t, "status": status}.items():
        if array.shape[:1] != (request.num_samples,):
            raise ProtocolError(f"{name} has shape {array.shape}, but {request.num_samples} samples were requested")
    return SampleResult(
        samples=samples,
        nfe=int(_member(meta, "nfe")),
        nfe_per_sample=nfe.astype(np.int64, copy=False),
        status=str(_member(meta, "status")),
        status_per_sample=status,
        t=t,
        failed=_failures(meta),
        trace=_trace(entries, meta),
        latency=_latency(meta),
        model=str(meta["model"]),
        version=int(_member(meta, "version")),
        checkpoint=str(_member(meta, "checkpoint")),
        seed=int(meta["seed"]),
        first_index=int(meta.get("first_index", request.first_index)),
        solver=dict(_member(meta, "solver")),
        deterministic=bool(_member(meta, "deterministic")),
        budget=dict(meta.get("budget", {})),
        digest=str(meta.get("digest", "")),
        request=dict(meta.get("request", {})),
        environment=dict(meta.get("environment", {})),
        digest_matches=meta.get("digest_matches"),
        differences=tuple(meta.get("differences", ())),
        saved=entries.get("saved"),
        saved_t=_saved_t(entries, meta),
        page=(request.url, request.settings),
        extra={key: value for key, value in meta.items() if key not in _META},
    )


def _failures(meta: Any) -> tuple[Failure, ...]:
    """Return the failed samples of a response."""
    return tuple(Failure(int(f["index"]), str(f["status"]), f.get("t")) for f in _member(meta, "failed"))


def _latency(meta: Any) -> Latency:
    """Return the latencies of a response."""
    return Latency(**{key: meta["latency"].get(key) for key in Latency.__annotations__})


def _check_request(meta: Any, request: SampleRequest) -> None:
    requested = {"model": request.model, "seed": request.seed, "first_index": request.first_index}
    for key, expected in requested.items():
        found = meta.get(key, expected) if key == "first_index" else _member(meta, key)
        if found != expected:
            raise ProtocolError(f"the response is for {key}={found!r}, but {key}={expected!r} was requested")


def _names(status: np.ndarray, meta: Mapping[str, Any]) -> np.ndarray:
    """Return the status of each sample as strings; small integers are looked up in `status_names`."""
    if status.dtype.kind == "U":
        return status
    names = np.asarray(_member(meta, "status_names"), dtype=np.str_)
    # Checked here: NumPy would count a negative code from the end and treat booleans as a mask.
    if status.dtype.kind not in "iu" or (status.size and not 0 <= status.min() <= status.max() < len(names)):
        raise ProtocolError(
            f"the response has a status that is not an index of its {len(names)} status_names; is it damaged?"
        )
    return names[status]


def _trace(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Trace:
    kinds = {"sample": np.int64, "t": np.float64, "h": np.float64, "error": np.float64, "accepted": np.bool_}
    columns = {name: np.asarray(entries.get(f"trace_{name}", ()), dtype=kind) for name, kind in kinds.items()}
    if len({len(column) for column in columns.values()}) != 1:
        raise ProtocolError(f"the trace has columns of different length: { {k: len(c) for k, c in columns.items()} }")
    summary = meta.get("trace")
    quantiles = (summary.get("quantiles") if isinstance(summary, dict) else None) or {}
    return Trace(**columns, quantiles={name: np.asarray(value, np.float64) for name, value in quantiles.items()})


def _saved_t(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> np.ndarray | None:
    if "saved" not in entries:
        return None
    if "saved_t" in entries:
        return entries["saved_t"]
    described = meta.get("saved")
    return np.asarray(described["t"], np.float64) if isinstance(described, dict) and "t" in described else None


def _entry(entries: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return an array of a response; raise a ProtocolError if it is missing."""
    if name not in entries:
        raise ProtocolError(f"the response has no entry {name!r} (found: {', '.join(entries)}); is the service older?")
    return entries[name]


def _member(meta: Any, name: str) -> Any:
    """Return a member of a response's metadata; raise a ProtocolError if it is missing."""
    if not isinstance(meta, dict) or name not in meta:
        raise ProtocolError(f"the response's meta has no {name!r}; is the service older than this SDK?")
    return meta[name]


def decode_json(document: Mapping[str, Any], request: SampleRequest) -> SampleResult:
    """Turn a JSON document into a result and check that it belongs to this request.

    Raises:
        ProtocolError: It is incomplete, or belongs to another request.
    """
    samples = states_of(document["samples"], document.get("shape"))
    saved = document.get("saved")
    failed = {int(fault["index"]): fault for fault in document["failed"]}
    count = len(samples)
    names = [failed[row]["status"] if row in failed else "success" for row in range(count)]
    reached = [failed[row].get("t") if row in failed else request.t_end for row in range(count)]
    entries = {
        "samples": samples,
        "nfe": np.full(count, -1, np.int64),
        "t": np.array([np.nan if t is None else t for t in reached], np.float64),
        "status": np.array(names, np.str_),
    }
    trace = document.get("trace") or {}
    for name in ("sample", "t", "h", "error", "accepted"):
        column = [np.nan if value is None else value for value in trace.get(name, ())]
        entries[f"trace_{name}"] = np.array(column)
    if saved is not None:
        entries["saved"] = states_of([row for rows in saved["states"] for row in rows]).reshape(
            count, len(saved["t"]), *samples.shape[1:]
        )
    result = _result(entries, document, request)
    if result.samples.shape[0] != request.num_samples:
        raise ProtocolError(f"received {result.samples.shape[0]} samples, but {request.num_samples} were requested")
    return result


def states_of(rows: Sequence[Any], shape: Sequence[int] | None = None) -> np.ndarray:
    """Return rows of states as float64; null (a state that is not finite) becomes NaN."""
    known = next((np.asarray(row, np.float64) for row in rows if row is not None), None)
    event = tuple(shape[1:]) if shape is not None else () if known is None else known.shape
    gap = np.full(event, np.nan)
    return np.array([gap if row is None else row for row in rows], np.float64).reshape(len(rows), *event)


def encoded(entries: Mapping[str, np.ndarray], meta: Any) -> EncodeResult:
    """Build the result of `encode`; raise a ProtocolError if something is missing, as do the others."""
    return EncodeResult(**_common(meta), x0=_entry(entries, "x0"), residual=entries.get("residual"))


def densities(entries: Mapping[str, np.ndarray], meta: Any) -> LogProbResult:
    """Build the result of `log_prob`."""
    return LogProbResult(
        **_common(meta),
        log_prob=_entry(entries, "log_prob"),
        standard_error=entries.get("standard_error"),
        residual=entries.get("residual"),
        divergence=dict(_member(meta, "divergence")),
    )


def diagnosis(entries: Mapping[str, np.ndarray], meta: Any) -> DiagnoseResult:
    """Build the result of `diagnose`."""
    return DiagnoseResult(
        **_common(meta),
        times=np.array(_member(meta, "times"), np.float64),
        eigenvalues=_entry(entries, "eigenvalues_real") + 1j * _entry(entries, "eigenvalues_imag"),
        condition_number=_entry(entries, "condition_number"),
        stiffness=_entry(entries, "stiffness"),
        stiffness_ratio=_entry(entries, "stiffness_ratio"),
        seed=int(_member(meta, "seed")),
        first_index=int(_member(meta, "first_index")),
    )


def _common(meta: Any) -> dict[str, Any]:
    return {
        "nfe": int(_member(meta, "nfe")),
        "network_rows": int(_member(meta, "network_rows")),
        "status": str(_member(meta, "status")),
        "failed": _failures(meta),
        "latency": _latency(meta),
        "model": str(_member(meta, "model")),
        "version": int(_member(meta, "version")),
        "checkpoint": str(_member(meta, "checkpoint")),
        "solver": dict(_member(meta, "solver")),
        "deterministic": bool(_member(meta, "deterministic")),
    }
