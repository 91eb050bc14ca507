"""Examples of the HTTP interface, shown at ``/docs``; tests send them and compare the responses."""

import json
from pathlib import Path
from typing import Any

from service.errors import Kind

CHECKPOINT = "sha256:5f0c1b8a9d3e47266b1f0f9e2c7d84a35e61b09c8f7a4d2e1b3c5a6978d0e1f2"

ENVIRONMENT = {
    "pathline": "0.1.0",
    "torch": "2.13.0+cpu",
    "numpy": "2.4.0",
    "scipy": "1.17.0",
    "numba": "0.66.0",
    "llvmlite": "0.48.0",
    "device": "cpu",
    "machine": "x86_64 sapphirerapids AVX512",
    "threads": "2",
    "path": "fused",
}

DIGEST = "sha256:8d6c4f20a1e37b9558e0c2f4716d3a8be9f01c5527a46d38b0e94f72c61d85a3"

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
"""Sample requests by name: fixed steps; error control, with the states at an intermediate time; a budget; a number of
the samples that is known."""

_HEAD = {"model": "moons", "version": 1, "checkpoint": CHECKPOINT, "seed": 0, "first_index": 0, "deterministic": True}
LATENCY = {"queue_s": 0.0004, "solve_s": 0.0031, "network_s": 0.0024, "encode_s": 0.0001, "total_s": 0.0041}
RK4 = {"name": "rk4", "steps": 4, "grid": "uniform", "max_nfe": 10000, "text": "rk4-4"}
DOPRI5 = {"name": "dopri5", "rtol": 1e-3, "atol": 1e-5, "controller": "paper", "error_control": "sample"}
DOPRI5 |= {"first_step": None, "max_step": None, "max_nfe": 10000, "text": "dopri5@1e-3/1e-5"}

SAMPLES: dict[str, dict[str, Any]] = {
    "fixed": _HEAD
    | {
        "noise": "philox-ndtri-v1",
        "path": "fused",
        "solver": RK4,
        "shape": [2, 2],
        "nfe": 16,
        "nfe_per_sample": {"min": 16, "mean": 16.0, "max": 16},
        "network_rows": 32,
        "status": "success",
        "failed": [],
        "digest": DIGEST,
        "request": {},
        "environment": ENVIRONMENT,
        "samples": [[-0.84, 0.52], [1.91, 0.13]],
        "trace": {
            "sample": [0, 0, 0, 0],
            "t": [0.0, 0.25, 0.5, 0.75],
            "h": [0.25, 0.25, 0.25, 0.25],
            "error": [None, None, None, None],
            "accepted": [True, True, True, True],
        },
        "latency": LATENCY,
    },
    "adaptive": _HEAD
    | {
        "noise": "philox-ndtri-v1",
        "path": "fused",
        "solver": DOPRI5,
        "shape": [2, 2],
        "nfe": 20,
        "nfe_per_sample": {"min": 20, "mean": 20.0, "max": 20},
        "network_rows": 40,
        "status": "success",
        "failed": [],
        "digest": DIGEST,
        "request": {},
        "environment": ENVIRONMENT,
        "samples": [[-0.84, 0.52], [1.91, 0.13]],
        "saved": {"t": [0.5], "states": [[[-0.61, 0.2]], [[1.2, -0.05]]]},
        "trace": {
            "sample": [0, 0, 0],
            "t": [0.0, 0.21, 0.58],
            "h": [0.21, 0.37, 0.42],
            "error": [0.14, 0.55, 0.66],
            "accepted": [True, True, True],
            "quantiles": {"t": [0.25, 0.75], "q10": [0.2, 0.4], "q50": [0.21, 0.41], "q90": [0.23, 0.42]},
        },
        "latency": LATENCY,
    },
}
SAMPLES["known"] = SAMPLES["fixed"] | {
    "known_values": {"mode": "replace", "values": "data"},
    "request": {"hashes": {"known": DIGEST}},
    "samples": [[1.0, 0.57], [1.0, 0.13]],
}
SAMPLES["budget"] = SAMPLES["fixed"] | {
    "solver": RK4 | {"name": "ab4", "steps": 9, "start": "ramp", "text": "ab4-9"},
    "budget": {
        "max_error": 0.01,
        "solver": "ab4-9",
        "nfe": 9,
        "promised_error": 0.008,
        "promised_distance": 0.0075,
        "p95": 0.0061,
        "p95_low": 0.0052,
        "samples": 512,
        "stored": True,
        "own_conditions": True,
        "measured_nfe": 9.0,
        "predicted_ms": 2.1,
        "reason": "of 241 measured solvers, the cheapest that keeps 1 %; 95 % of samples end within 0.8 % of the "
        "spread from the exact ends of their paths (p95 0.61 %, interval 0.52 % to 0.8 %), measured beforehand on 512 "
        "samples of seed 7070707",
    },
}
"""The responses, by the same names."""

_REPLAYED = ("model", "version", "checkpoint", "solver", "seed", "shape", "environment", "digest")
REPLAY: dict[str, Any] = {name: SAMPLES["fixed"][name] for name in _REPLAYED} | {"force": True}
"""What a replay needs of an answer; it may be sent whole."""

REPLAYED: dict[str, Any] = {
    "digest_matches": False,
    "differences": [
        {
            "what": "torch",
            "answer": "2.13.0+cpu",
            "here": "2.14.0+cpu",
            "reason": "another version may have other kernels",
        }
    ],
    **SAMPLES["fixed"],
}

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

_DATA = [[-0.84, 0.52], [1.91, 0.13]]
_ANALYSIS_HEAD = {"model": "moons", "version": 1, "checkpoint": CHECKPOINT, "deterministic": True}
_COST = {
    "nfe": 50,
    "nfe_per_sample": {"min": 44, "mean": 47.0, "max": 50},
    "network_rows": 94,
    "status": "success",
    "failed": [],
}

ENCODE: dict[str, dict[str, Any]] = {"encode": {"samples": _DATA, "rtol": 1e-5, "atol": 1e-5}}
ENCODED: dict[str, dict[str, Any]] = {
    "encode": _ANALYSIS_HEAD
    | {"solver": DOPRI5 | {"rtol": 1e-5, "text": "dopri5@1e-5"}}
    | _COST
    | {"shape": [2, 2], "x0": [[-0.41, 0.77], [1.02, -0.36]], "latency": LATENCY}
}
LOG_PROB: dict[str, dict[str, Any]] = {
    "exact": {"samples": _DATA},
    "estimate": {"samples": _DATA, "divergence": "hutchinson", "probes": 4, "seed": 0},
}
_DENSITY = (
    _ANALYSIS_HEAD
    | {"solver": DOPRI5 | {"rtol": 1e-5, "text": "dopri5@1e-5"}}
    | _COST
    | {"shape": [2], "latency": LATENCY}
)
LOG_PROBS: dict[str, dict[str, Any]] = {
    "exact": _DENSITY
    | {
        "divergence": {"method": "exact"},
        "log_prob": [-0.93, -1.21],
    },
    "estimate": _DENSITY
    | {
        "divergence": {"method": "hutchinson", "probes": 4, "seed": 0},
        "log_prob": [-0.9, -1.3],
        "standard_error": [0.21, 0.17],
    },
}
DIAGNOSE: dict[str, dict[str, Any]] = {"diagnose": {"num_samples": 1, "seed": 0, "times": [0.0, 1.0]}}
DIAGNOSED: dict[str, dict[str, Any]] = {
    "diagnose": _ANALYSIS_HEAD
    | {"solver": RK4 | {"steps": 20, "text": "rk4-20"}}
    | {"nfe": 80, "nfe_per_sample": {"min": 80, "mean": 80.0, "max": 80}, "network_rows": 84}
    | {"status": "success", "failed": [], "seed": 0, "first_index": 0, "noise": "philox-ndtri-v1"}
    | {
        "times": [0.0, 1.0],
        "shape": [1, 2, 2],
        "eigenvalues_real": [[[-1.02, -0.53], [-6.4, 0.8]]],
        "eigenvalues_imag": [[[0.0, 0.0], [0.0, 0.0]]],
        "condition_number": [[1.93, 8.1]],
        "stiffness": [[1.02, 6.4]],
        "stiffness_ratio": [[1.92, 8.0]],
        "latency": LATENCY,
    }
}


MODEL_LIST = {
    "models": [
        {
            "name": "moons",
            "status": "served",
            "fallback_from": None,
            "loaded": True,
            "version": 1,
            "dtype": "float32",
            "event_shape": [2],
            "data_shape": [2],
            "deterministic": True,
            "path": "fused",
            "tuned": ["tuned-6", "ab4-9/tuned"],
            "tuned_fault": "",
            "field": "velocity",
        }
    ],
    "training": [{"name": "digits", "left_s": 41.5}],
    "passed_over": [
        {"path": "my model", "reason": "passed over: not a valid model name; use up to 64 of A-Z, a-z, 0-9, ..."}
    ],
    "more_passed_over": 0,
}
MODEL = {
    "name": "moons",
    "status": "served",
    "serving": 1,
    "fallback_from": None,
    "versions": [1],
    "served": [
        {
            "version": 1,
            "checkpoint": CHECKPOINT,
            "deterministic": True,
            "path": "fused",
            "path_reason": "",
            "report": ["samples cannot be told from unseen data: a judge is right in 51% of cases (50% is guessing)"],
            "examples": [[-0.41, 0.93], [1.12, -0.49]],
            "tuned": ["tuned-6", "ab4-9/tuned"],
            "tuned_fault": "",
            "frontier": True,
            "card": {"format": 1, "name": "moons", "dtype": "float32", "event_shape": [2]},
            "loaded": True,
        }
    ],
    "unavailable": [],
}
SOLVER_LIST = {
    "solvers": [
        {
            "name": "rk4",
            "kind": "fixed",
            "order": 4,
            "embedded_order": None,
            "stages": 4,
            "fsal": False,
            "cost": "4 N",
            "stability_limit": 2.785294,
            "parameters": {"steps": "integer", "grid": ["uniform", "shift", "sway"], "max_nfe": "integer"},
            "reference": "Kutta 1901; Hairer I, II.1 table 1.2",
        }
    ],
    "settings": {
        "steps": {
            "kind": "integer",
            "about": "number of fixed steps",
            "default": None,
            "choices": [],
        }
    },
    "fields": {},
    "grids": {"uniform": {"formula": "u", "reference": "Hairer I, II.1", "parameters": {}}},
}
FRONTIER = {
    "model": "moons",
    "version": 1,
    "checkpoint": CHECKPOINT,
    "reference": "dopri5 at 1e-09 in float64",
    "conditions": "",
    "curves": [
        {
            "guidance": None,
            "samples": 512,
            "seed": 7070707,
            "spread": 0.94,
            "complete": True,
            "points": [
                {
                    "solver": "ab4-9",
                    "nfe": 9.0,
                    "nfe_most": 9,
                    "p50": 0.002,
                    "p95": 0.006,
                    "p95_low": 0.005,
                    "p95_high": 0.008,
                    "worst": 0.011,
                    "failed": 0,
                    "best": True,
                }
            ],
        }
    ],
}
MEASURE: dict[str, dict[str, Any]] = {
    "measure": {"solvers": ["rk4-4", "ab3-12"], "num_samples": 128, "seed": 0, "budget": {"max_error": 0.02}}
}
MEASURED = (
    'event: start\ndata: {"model":"moons","version":1,"seed":0,"num_samples":128,"reference":"dopri5@1e-07"}\n\n'
    'event: reference\ndata: {"solver":"dopri5@1e-07","nfe":188,"spread":0.94}\n\n'
    'event: point\ndata: {"solver":"ab3-12","nfe_most":12,"p50":0.004,"p95":0.011,"p95_low":0.008,"p95_high":0.016}\n\n'
    'event: completed\ndata: {"choice":{"solver":"ab3-12","promised_error":0.016},"verdict":"ab3-12: ..."}\n\n'
)
RELOADED = {"loaded": [{"name": "moons", "version": 2}], "unloaded": [], "refused": [], "models": {"moons": 2}}
UNLOADED = {"name": "moons", "unloaded": [1]}
ALIVE = {"status": "alive"}
READY = {"status": "ready", "device": "cpu", "models": {"moons": 1}, "unavailable": {}}
LOAD = {
    "accepts": True,
    "jobs": 2,
    "work": 40960.0,
    "seconds": 1.2,
    "models": [
        {
            "model": "moons",
            "version": 1,
            "operation": "sample",
            "interactive": 40960.0,
            "bulk": 0.0,
            "budget": 1024,
            "tick_s": [{"rows": 1.0, "seconds": 0.0008}, {"rows": 1024.0, "seconds": 0.028}],
        }
    ],
}
_PARAMETERS = {
    "checkpoint": SAMPLES["fixed"]["checkpoint"],
    "seed": 0,
    "first_index": 0,
    "deterministic": True,
    "noise": "philox-ndtri-v1",
    "network_rows": 320,
    "status": "success",
    "solver": "rk4",
    "failed": 0,
    "digest": DIGEST,
}
_NFE = {"name": "nfe", "shape": [2], "datatype": "INT64", "data": [20, 20]}
_OIP_HEAD = {"model_name": "moons", "model_version": "1", "parameters": _PARAMETERS}

INFERRED: dict[str, Any] = {
    "seed": _OIP_HEAD
    | {
        "outputs": [
            {"name": "samples", "shape": [2, 2], "datatype": "FP32", "data": [-0.84, 0.52, 1.91, 0.13]},
            _NFE,
            {"name": "t", "shape": [2], "datatype": "FP64", "data": [1.0, 1.0]},
            {"name": "status", "shape": [2], "datatype": "BYTES", "data": ["success", "success"]},
        ]
    },
    "states": _OIP_HEAD
    | {
        "id": "from-two-points",
        "outputs": [{"name": "samples", "shape": [2, 2], "datatype": "FP32", "data": [1.02, -0.4, 0.3, 0.77]}, _NFE],
    },
}
OIP_METADATA = {
    "name": "moons",
    "versions": ["1", "2"],
    "platform": "pathline_safetensors",
    "inputs": [{"name": "x0", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "samples", "datatype": "FP32", "shape": [-1, 2]}],
}
OIP_CONFIG = {
    "name": "moons",
    "platform": "pathline_safetensors",
    "backend": "pathline",
    "max_batch_size": 0,
    "version_policy": {"latest": {"num_versions": 1}},
    "input": [{"name": "x0", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": True}],
    "output": [{"name": "samples", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": False}],
    "model_transaction_policy": {"decoupled": False},
}
OIP_STATISTICS = {
    "name": "moons",
    "version": "2",
    "last_inference": 0,
    "inference_count": 12,
    "execution_count": 240,
    "inference_stats": {
        "success": {"count": 12, "ns": 150_000_000},
        "queue": {"count": 12, "ns": 2_000_000},
        "compute_infer": {"count": 12, "ns": 148_000_000},
        "fail": {"count": 0, "ns": 0},
    },
    "batch_stats": [],
}

METRICS = """# TYPE pathline_requests_total counter
pathline_requests_total{outcome="200",route="/v1/sample"} 3.0
"""
PAGE = "<!doctype html>"

ERRORS: dict[Kind, Any] = {
    kind: problem
    for problem in json.loads(Path(__file__).with_name("recorded_errors.json").read_text("utf-8")).values()
    for kind in Kind
    if kind.type == problem["type"]
}
"""A problem document of each kind, recorded from the service by tests/service/test_recorded_errors.py."""
