"""Examples of the HTTP interface, shown at ``/docs``: requests, and the answers that were recorded from the service.

``RECORD=1 pytest tests/service/test_openapi.py`` sends the requests and records the answers; without the variable the
test compares them. Streams of events are shown as written here, as whether there is progress depends on the machine.
"""

import json
from pathlib import Path
from typing import Any

from service.errors import Kind

_HERE = Path(__file__).parent

ANSWERS: dict[str, dict[str, Any]] = json.loads((_HERE / "recorded_answers.json").read_text("utf-8"))
"""Answers by method and path, and then by the name of the request."""


def answers(method: str, path: str) -> dict[str, Any]:
    """Return the answers of an endpoint by the name of the request, `answer` where it has none.

    Answers of an endpoint that is new are recorded because it has an entry from now on.
    """
    return ANSWERS.setdefault(f"{method} {path}", {})


REQUESTS: dict[str, dict[str, Any]] = {
    "fixed": {"model": "moons", "num_samples": 2, "seed": 0, "solver": "rk4", "steps": 4},
    "adaptive": {"model": "moons", "num_samples": 2, "seed": 0, "solver": "dopri5", "rtol": 1e-3, "save_at": [0.5]},
    "budget": {"model": "moons", "num_samples": 2, "seed": 0, "budget": {"max_error": 0.01}},
    "known": {
        "model": "moons",
        "num_samples": 2,
        "seed": 0,
        "solver": "rk4-4",
        "known": {"values": [1.0, 0.0], "mask": [1, 0]},
    },
}
"""Requests for samples by name: fixed steps; error control, with the states at an intermediate time; a budget; a
number of the samples that is known."""

DATA = [[-0.84, 0.52], [1.91, 0.13]]
"""Two rows of moons."""

_REPLAYED = ("model", "version", "checkpoint", "solver", "seed", "shape", "environment", "digest")


def replay() -> dict[str, Any]:
    """Return what a replay needs of an answer, here by another version of torch; it may be sent whole."""
    answer = answers("POST", "/v1/sample")["fixed"]
    other = {"environment": answer["environment"] | {"torch": "2.6.0"}}
    return {name: answer[name] for name in _REPLAYED} | other | {"force": True}


STREAM = """event: start
data: {"request_id": "13ab3e98", "model": "moons", "version": 1, "seed": 0, "num_samples": 2, "nfe_bound": 10000}

event: progress
data: {"nfe": 8, "t": 0.21, "share": 0.21, "done": 0, "queued": false, "elapsed_s": 0.011}

event: sample
data: {"t": 0.5, "index": 0, "states": [[-0.61, 0.2], [1.2, -0.05]]}

event: completed
data: {"model": "moons", "seed": 0, "status": "success", "nfe": 20, "samples": [[-0.84, 0.52], [1.91, 0.13]]}

"""
"""The events of the adaptive request; `start` and `completed` have more members than are shown."""

MEASURED = (
    'event: start\ndata: {"model":"moons","version":1,"seed":0,"num_samples":128,"reference":"dopri5@1e-07"}\n\n'
    'event: reference\ndata: {"solver":"dopri5@1e-07","nfe":188,"spread":0.94}\n\n'
    'event: point\ndata: {"solver":"ab3-12","nfe_most":12,"p50":0.004,"p95":0.011,"p95_low":0.008,"p95_high":0.016}\n\n'
    'event: completed\ndata: {"choice":{"solver":"ab3-12","promised_error":0.016},"verdict":"ab3-12: ..."}\n\n'
)
"""The events of a measurement."""

METRICS = """# TYPE pathline_requests_total counter
pathline_requests_total{outcome="200",route="/v1/sample"} 3.0
"""

ERRORS: dict[Kind, Any] = {
    kind: problem
    for problem in json.loads((_HERE / "recorded_errors.json").read_text("utf-8")).values()
    for kind in Kind
    if kind.type == problem["type"]
}
"""A problem document of each kind, recorded from the service by tests/service/test_recorded_errors.py."""
