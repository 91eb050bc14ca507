"""Export: write the rows of a job to one file that `training` reads as data or pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from pathline._bulk_spec import JobSpec

from fleet.errors import CommandError, FleetError
from fleet.store import Target
from models.noise import SCHEME, noise
from models.regular import replacing
from service.requests.schemas import SOLVER_FIELDS
from solvers import SolverSpec


def export_pairs(target: Target, file: Path) -> int:
    """Write noise and the end states of its paths to an .npz file, for `training fit --reflow --pairs FILE`.

    Returns:
        The number of pairs.

    Raises:
        CommandError: there is no job, it is not complete, its samples are decoded, some failed, the model has free
            axes, or the file name does not end in .npz.
        FleetError: the file cannot be written.
    """
    if file.suffix != ".npz":
        raise CommandError(f"{file}: give a name that ends in .npz")
    spec = _complete(target)
    solving = {name: spec.request[name] for name in SOLVER_FIELDS if name in spec.request}
    solver = SolverSpec.of(**solving) if solving else None
    failed = sum(len(receipt.failed) for receipt in target.receipts(set(range(spec.shards))))
    refusals = {
        "its samples have known values, which `training` cannot tell from what the model makes": (
            spec.request.get("known") is not None
        ),
        "holds decoded samples, but pairs are states of the flow; run the job with --states": (
            spec.request.get("decode", True)
        ),
        f"holds samples from noise of the scheme {spec.noise}, but `training` takes {SCHEME}": spec.noise != SCHEME,
        "its samples start later than at pure noise, which `training` pairs with data": (
            spec.request.get("start_time") is not None
        ),
        f"{failed} samples did not reach the end of their paths; use a finer solver": failed,
        f"{solver} adds noise on the way, so its samples do not follow from their x0": solver and solver.noisy,
    }
    for reason, applies in refusals.items():
        if applies:
            raise CommandError(f"{target.address}: {reason}")
    about = {
        "model": spec.model,
        "checkpoint": spec.checkpoint,
        "solver": "the service's default" if solver is None else str(solver),
        "guidance": spec.request.get("guidance"),
        "seed": spec.seed,
        "first_index": spec.first_index,
    }
    states, conditions = _rows(target, spec)
    x0 = noise(spec.seed, spec.first_index, spec.total, spec.shape, getattr(torch, spec.dtype)).numpy()
    x0 = x0 * x0.dtype.type(spec.request.get("noise_scale", 1.0))
    about_bytes = np.frombuffer(json.dumps(about).encode(), np.uint8)
    _write(file, lambda handle: np.savez(handle, noise=x0, states=states, about=about_bytes, **conditions))
    return len(states)


def export(target: Target, file: Path) -> int:
    """Write all samples of a complete job to a .npy file, or to a .npz file with their labels or conditions.

    Returns:
        The number of rows.

    Raises:
        CommandError: there is no job, it is not complete, or the file name has another suffix.
        FleetError: the file cannot be written.
    """
    if file.suffix not in (".npy", ".npz"):
        raise CommandError(f"{file}: give a name that ends in .npy (samples only) or .npz (with labels or conditions)")
    samples, conditions = _rows(target, _complete(target))
    if file.suffix == ".npy":
        _write(file, lambda handle: np.save(handle, samples))
    else:
        _write(file, lambda handle: np.savez(handle, samples=samples.reshape(len(samples), -1), **conditions))
    return len(samples)


def _complete(target: Target) -> JobSpec:
    """Return the spec of a job that is complete and whose files match their receipts.

    Raises:
        CommandError: it is not.
    """
    spec, done = target.job(), set[int]()
    for shard, outcome in target.verify(spec):
        if isinstance(outcome, str):
            raise CommandError(f"{target.address}: shard {shard}: {outcome}; delete its receipt and run `sample` again")
        done.add(shard)
    if missing := spec.shards - len(done):
        raise CommandError(f"{target.address}: {missing} shards are missing; run `sample` again first")
    return spec


def _rows(target: Target, spec: JobSpec) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return the samples of a job, and its labels or conditions, if any, under that name."""
    parts = [target.rows(spec, shard) for shard in range(spec.shards)]
    samples = np.concatenate([part.samples for part in parts])
    columns = [part.condition for part in parts if part.condition is not None]
    if not columns:
        return samples, {}
    conditions = np.concatenate(columns)
    return samples, {"labels" if conditions.ndim == 1 else "conditions": conditions}


def _write(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that appears only once it is complete."""
    try:
        with replacing(file) as handle:
            write(handle)
    except OSError as error:
        raise FleetError(f"{file}: cannot be written: {error.strerror}; make room or choose another path") from None
