"""Time to get a million floats into an array: as npz, and as binary tensors of the Open Inference Protocol."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from statistics import median

import httpx
import numpy as np

_FLOATS = 1_000_000
_TURNS = 15


def transfers(url: str, width: int) -> str:
    """Return the table: time from request to array, in ms, for samples of `width` numbers of the model `wide`."""
    request = {"num_samples": _FLOATS // width, "seed": 0, "solver": "euler", "steps": 1, "trace": "none"}
    with httpx.Client(base_url=url, timeout=60) as http:

        def npz() -> np.ndarray:
            answer = http.post("/v1/sample", json={"model": "wide", **request}, headers={"Accept": "application/x-npz"})
            with np.load(io.BytesIO(answer.content)) as archive:
                return archive["samples"]

        def tensors() -> np.ndarray:
            answer = http.post("/v2/models/wide/infer", json={"parameters": {**request, "binary_data_output": True}})
            length = int(answer.headers["Inference-Header-Content-Length"])
            [first, *_] = json.loads(answer.content[:length])["outputs"]
            count = first["parameters"]["binary_data_size"] // 4
            return np.frombuffer(answer.content, "<f4", count, length).reshape(first["shape"])

        assert (npz() == tensors()).all()
        times = {"npz": _times(npz), "binary tensors": _times(tensors)}
    lines = ["| a million floats as | ms, median (min to max) |", "|---|---|"]
    lines += [f"| {name} | {median(each):.1f} ({min(each):.1f} to {max(each):.1f}) |" for name, each in times.items()]
    ratio = median(times["binary tensors"]) / median(times["npz"])
    return "\n".join([*lines, "", f"binary tensors take {ratio:.2f} times as long as npz (goal: 1.5)"])


def _times(call: Callable[[], np.ndarray]) -> list[float]:
    found = []
    for _ in range(_TURNS):
        begin = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - begin))
    return found
