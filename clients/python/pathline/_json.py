"""Reading the JSON answer, which is what a stream ends with. It carries no numbers for each sample but the failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathline import _npz
from pathline._request import SampleRequest
from pathline._result import SampleResult
from pathline.errors import ProtocolError


def decode(document: Mapping[str, Any], request: SampleRequest) -> SampleResult:
    """Turn a JSON document into a result and check that it answers this request.

    Raises:
        ProtocolError: It lacks something, or answers another request.
    """
    samples = states(document["samples"], document.get("shape"))
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
        entries["saved"] = states([row for rows in saved["states"] for row in rows]).reshape(
            count, len(saved["t"]), *samples.shape[1:]
        )
    result = _npz.result(entries, document, request)
    if result.samples.shape[0] != request.num_samples:
        raise ProtocolError(f"{result.samples.shape[0]} samples came, but {request.num_samples} were asked for")
    return result


def states(rows: Sequence[Any], shape: Sequence[int] | None = None) -> np.ndarray:
    """Return rows of states as float64; null (a state that is not finite) becomes NaN."""
    known = next((np.asarray(row, np.float64) for row in rows if row is not None), None)
    event = tuple(shape[1:]) if shape is not None else () if known is None else known.shape
    gap = np.full(event, np.nan)
    return np.array([gap if row is None else row for row in rows], np.float64).reshape(len(rows), *event)
