"""Reading the binary answer: a zip of NumPy arrays and one entry `meta` with the rest as UTF-8 JSON.

Nothing is ever unpickled, and no array is allocated that the bytes at hand cannot fill.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pathline._request import SampleRequest
from pathline._result import Failure, Latency, SampleResult, Trace
from pathline.errors import ProtocolError

T = TypeVar("T")

MEDIA_TYPE = "application/x-npz"
_DEFLATE_LIMIT = 1032  # deflate cannot shrink data further than this, so more is a lie
_META = (
    *("model", "version", "checkpoint", "seed", "first_index", "deterministic", "solver", "nfe", "status", "failed"),
    *("latency", "shape", "nfe_per_sample", "trace", "saved", "status_names", "samples"),
)


def decode(content: bytes, request: SampleRequest) -> SampleResult:
    """Turn the bytes of an answer into a result and check that it answers this request.

    Raises:
        ProtocolError: It is damaged, lacks something, or answers another request.
    """
    return read(content, lambda entries, meta: result(entries, meta, request))


def read(content: bytes, build: Callable[[Mapping[str, np.ndarray], Any], T]) -> T:
    """Return what is built of the arrays of an answer and the rest of it.

    Raises:
        ProtocolError: It is damaged, or lacks something.
    """
    try:
        entries = _entries(content)
        return build(entries, json.loads(entry(entries, "meta").tobytes()))
    except ProtocolError:
        raise
    except Exception as error:  # whatever damaged bytes bring up in zipfile, zlib, numpy and json
        raise ProtocolError(
            f"the answer of {len(content)} bytes is not a sound npz ({type(error).__name__}: {error}); "
            "something on the way damaged it, or this is not a Pathline service"
        ) from error


def _entries(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(info.file_size for info in archive.infolist()) > _DEFLATE_LIMIT * len(content):
            raise ValueError("the sizes in its directory are impossible")
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
    """Parse the head of a .npy file; kept, as parsing takes longer than reading a few hundred samples."""
    file = io.BytesIO(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return readers[np.lib.format.read_magic(file)](file)


def result(entries: Mapping[str, np.ndarray], meta: Mapping[str, Any], request: SampleRequest) -> SampleResult:
    """Build a result from the arrays of an answer and the rest of it.

    Raises:
        ProtocolError: Something is missing, or it answers another request.
    """
    _check_answers(meta, request)
    samples, nfe, t = (entry(entries, name) for name in ("samples", "nfe", "t"))
    status = _names(entry(entries, "status"), meta)
    for name, array in {"samples": samples, "nfe": nfe, "t": t, "status": status}.items():
        if array.shape[:1] != (request.num_samples,):
            raise ProtocolError(f"{name} has shape {array.shape}, but {request.num_samples} samples were asked for")
    return SampleResult(
        samples=samples,
        nfe=int(member(meta, "nfe")),
        nfe_per_sample=nfe.astype(np.int64, copy=False),
        status=str(member(meta, "status")),
        status_per_sample=status,
        t=t,
        failed=failures_of(meta),
        trace=_trace(entries, meta),
        latency=latency_of(meta),
        model=str(meta["model"]),
        version=int(member(meta, "version")),
        checkpoint=str(member(meta, "checkpoint")),
        seed=int(meta["seed"]),
        first_index=int(meta.get("first_index", request.first_index)),
        solver=dict(member(meta, "solver")),
        deterministic=bool(member(meta, "deterministic")),
        saved=entries.get("saved"),
        saved_t=_saved_t(entries, meta),
        extra={key: value for key, value in meta.items() if key not in _META},
    )


def failures_of(meta: Any) -> tuple[Failure, ...]:
    """Return the samples that an answer says have failed."""
    return tuple(Failure(int(f["index"]), str(f["status"]), f.get("t")) for f in member(meta, "failed"))


def latency_of(meta: Any) -> Latency:
    """Return where the time went, as an answer says."""
    return Latency(**{key: meta["latency"].get(key) for key in Latency.__annotations__})


def _check_answers(meta: Any, request: SampleRequest) -> None:
    asked = {"model": request.model, "seed": request.seed, "first_index": request.first_index}
    for key, expected in asked.items():
        found = meta.get(key, expected) if key == "first_index" else member(meta, key)
        if found != expected:
            raise ProtocolError(f"the answer is for {key}={found!r}, but {key}={expected!r} was asked for")


def _names(status: np.ndarray, meta: Mapping[str, Any]) -> np.ndarray:
    """Return the status of each sample as strings; small integers are looked up in `status_names`."""
    if status.dtype.kind == "U":
        return status
    names = np.asarray(member(meta, "status_names"), dtype=np.str_)
    # Checked here: NumPy would count a negative code from the end, and take booleans for a mask.
    if status.dtype.kind not in "iu" or (status.size and not 0 <= status.min() <= status.max() < len(names)):
        raise ProtocolError(
            f"the answer has a status that is not an index of its {len(names)} status_names; is it damaged?"
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


def entry(entries: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return an array of an answer; a ProtocolError if it is not there."""
    if name not in entries:
        raise ProtocolError(f"the answer has no entry {name!r} (found: {', '.join(entries)}); is the service older?")
    return entries[name]


def member(meta: Any, name: str) -> Any:
    """Return a member of the rest of an answer; a ProtocolError if it is not there."""
    if not isinstance(meta, dict) or name not in meta:
        raise ProtocolError(f"the answer's meta has no {name!r}; is the service older than this SDK?")
    return meta[name]
