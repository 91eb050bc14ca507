"""Examples of the operations, shown at ``/docs``; tests send them and hold the answers to them."""

from typing import Any

from service.examples import CHECKPOINT, DOPRI5, LATENCY, RK4

_DATA = [[-0.84, 0.52], [1.91, 0.13]]
_HEAD = {"model": "moons", "version": 1, "checkpoint": CHECKPOINT, "deterministic": True}
_COST = {
    "nfe": 50,
    "nfe_per_sample": {"min": 44, "mean": 47.0, "max": 50},
    "network_rows": 94,
    "status": "success",
    "failed": [],
}

ENCODE: dict[str, dict[str, Any]] = {"encode": {"samples": _DATA, "rtol": 1e-5, "atol": 1e-5}}
ENCODED: dict[str, dict[str, Any]] = {
    "encode": _HEAD
    | {"solver": DOPRI5 | {"rtol": 1e-5}}
    | _COST
    | {"shape": [2, 2], "x0": [[-0.41, 0.77], [1.02, -0.36]], "latency": LATENCY}
}
LOG_PROB: dict[str, dict[str, Any]] = {
    "exact": {"samples": _DATA},
    "estimate": {"samples": _DATA, "divergence": "hutchinson", "probes": 4, "seed": 0},
}
_DENSITY = _HEAD | {"solver": DOPRI5 | {"rtol": 1e-5}} | _COST | {"shape": [2], "latency": LATENCY}
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
    "diagnose": _HEAD
    | {"solver": RK4 | {"steps": 20}}
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
