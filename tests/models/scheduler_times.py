"""Times of diffusers' schedulers: the settings to compare, and what diffusers' classes make of them.

    python -m tests.models.scheduler_times

records them in `scheduler_times.json`, for tests without diffusers; it needs diffusers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")

FLOW, DDIM, DPM = "FlowMatchEulerDiscreteScheduler", "DDIMScheduler", "DPMSolverMultistepScheduler"
DYNAMIC: dict[str, Any] = {"_class_name": FLOW, "use_dynamic_shifting": True}
STABLE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1}

CASES: list[dict[str, Any]] = [
    *({"config": {"_class_name": FLOW, "shift": 3.0}, "steps": steps} for steps in (1, 4, 8, 28)),
    {"config": {"_class_name": FLOW}, "steps": 10},
    {"config": {"_class_name": FLOW, "shift": 3.0, "use_karras_sigmas": True}, "steps": 12},
    {"config": {"_class_name": FLOW, "shift": 3.0, "use_exponential_sigmas": True}, "steps": 12},
    {"config": {"_class_name": FLOW, "shift": 3.0, "use_beta_sigmas": True}, "steps": 12},
    {"config": {"_class_name": FLOW, "shift": 2.0, "shift_terminal": 0.1}, "steps": 9},
    {"config": {"_class_name": FLOW, "shift": 2.0, "invert_sigmas": True}, "steps": 9},
    *({"config": DYNAMIC, "steps": 28, "size": size} for size in ([16, 16], [64, 64], [128, 128], [32, 96])),
    {"config": {**DYNAMIC, "pipeline_sigmas": False}, "steps": 28, "size": [64, 64]},
    {"config": {**DYNAMIC, "time_shift_type": "linear"}, "steps": 8, "size": [64, 64]},
    {
        "config": {**DYNAMIC, "base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "shift_terminal": 0.1},
        "steps": 20,
        "size": [64, 64],
    },
    {"config": {**DYNAMIC, "use_beta_sigmas": True}, "steps": 20, "size": [64, 64]},
    *({"config": {"_class_name": DDIM, **STABLE, "set_alpha_to_one": False}, "steps": steps} for steps in (20, 50)),
    {"config": {"_class_name": DDIM}, "steps": 50},
    {"config": {"_class_name": DDIM, "timestep_spacing": "trailing", "prediction_type": "v_prediction"}, "steps": 20},
    {"config": {"_class_name": DDIM, "timestep_spacing": "linspace", "beta_schedule": "squaredcos_cap_v2"}, "steps": 9},
    {"config": {"_class_name": DPM, **STABLE}, "steps": 20},
    {"config": {"_class_name": DPM, **STABLE, "timestep_spacing": "leading"}, "steps": 25},
    {"config": {"_class_name": DPM, "timestep_spacing": "trailing", "final_sigmas_type": "sigma_min"}, "steps": 15},
    {"config": {"_class_name": DPM, **STABLE, "use_karras_sigmas": True}, "steps": 20},
    {"config": {"_class_name": DPM, **STABLE, "use_exponential_sigmas": True}, "steps": 12},
    {"config": {"_class_name": DPM, **STABLE, "use_beta_sigmas": True}, "steps": 12},
    {"config": {"_class_name": DPM, **STABLE, "use_lu_lambdas": True}, "steps": 12},
    {"config": {"_class_name": DPM, "beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -5.1}, "steps": 12},
]
"""`size` is the height and width of a state whose tokens are patches of 2 x 2."""


def theirs(case: dict[str, Any]) -> dict[str, list[float]]:
    """Return the sigmas and times of diffusers' class; DDIM has no sigmas."""
    import diffusers  # type: ignore[import-not-found]

    config = {key: value for key, value in case["config"].items() if key not in ("_class_name", "pipeline_sigmas")}
    scheduler = getattr(diffusers, case["config"]["_class_name"])(**config)
    given: dict[str, Any] = {"num_inference_steps": case["steps"]}
    if "size" in case:  # as the pipelines do
        high, wide = case["size"]
        few, many = scheduler.config.base_image_seq_len, scheduler.config.max_image_seq_len
        slope = (scheduler.config.max_shift - scheduler.config.base_shift) / (many - few)
        given["mu"] = scheduler.config.base_shift + slope * (high // 2 * (wide // 2) - few)
        if case["config"].get("pipeline_sigmas", True):
            given["sigmas"] = np.linspace(1.0, 1 / case["steps"], case["steps"])
    scheduler.set_timesteps(**given)
    sigmas = getattr(scheduler, "sigmas", None)
    return {"times": scheduler.timesteps.tolist(), "sigmas": [] if sigmas is None else sigmas.tolist()}


def main() -> None:
    """Record them."""
    lines = [json.dumps(theirs(case)) for case in CASES]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
