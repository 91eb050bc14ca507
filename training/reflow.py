"""Reflow: training a straighter flow on pairs of noise and the ends of a published model's paths.

Liu, Gong & Liu, "Flow Straight and Fast: Learning to Generate and Transfer Data with Rectified Flow", ICLR 2023,
section 2.2: training on the coupling (x0, end of the path from x0) does not raise any convex transport cost, and
makes paths straighter, so that fewer steps reach their ends.
"""

import fcntl
import hashlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from models.arrays import load_array
from models.checkpoint.card import Card
from models.checkpoint.loading import Checkpoint
from models.conditions import labels_of
from models.field import Field, solve
from models.noise import noise
from models.regular import write_atomically
from solvers import Status
from training import draws
from training.arrays import load_arrays
from training.config import Recipe, ReflowConfig
from training.dataset import DataSet
from training.draws import DrawPurpose, seed32
from training.errors import DataError, TrainingError
from training.folders import make_writable
from training.parents import check_fit, load_parent, parent_velocity
from training.solving import parse_solver

_PART = 2048
"""Pairs solved and stored at a time."""


def with_pairs(recipe: Recipe, data: DataSet, runs_dir: Path) -> DataSet:
    """Return the data set with pairs of the parent in place of its samples; the reference stays.

    Pairs are drawn once and stored in parts under `runs_dir`; a stopped run resumes with the missing parts.
    The conditions of a conditional model are those of the data, in random order, repeated for more pairs. If the recipe
    names a file of pairs, nothing is drawn.

    Args:
        recipe: a pinned recipe with `reflow` (see `pin_parent`).
        data: the training data of the parent.
        runs_dir: folder for the state of unfinished runs.

    Raises:
        UsageError: the parent's samples have another shape or condition, it cannot be guided as requested, or it
            was trained on other data.
        DataError: the file has no pairs of this parent.
        TrainingError: a path did not reach its end, or a part cannot be written.
    """
    config = recipe.reflow
    assert config is not None  # noqa: S101  (callers check)
    parent = load_parent(config, "reflow")
    check_fit(parent.card, data, config, "reflow")
    if config.file:
        ends, x0, conditions, solved = _from_file(config, parent.card, data)
    else:
        ends, x0, conditions = _drawn(recipe, config, parent, data, runs_dir)
        solved = {"solver": config.solver, "guidance": config.guidance}
    origin = {"parent": parent.card.name, "parent_weights_sha256": config.sha256, "data_sha256": data.digest}
    card = {key: value for key, value in data.card.items() if key != "sha256"}
    card["reflow"] = {**origin, "pairs": len(ends), **solved}
    return replace(data, train=ends, noise=x0, conditions=conditions, card=card)


Pairs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[Any] | None]
"""Ends of paths and their noise, (pairs, *event), and their conditions as the network takes them."""


def _from_file(config: ReflowConfig, parent: Card, data: DataSet) -> tuple[*Pairs, dict[str, Any]]:
    """Return the pairs of a file, and how they were solved.

    Raises:
        DataError: it cannot be read, or has no pairs of this parent and these conditions.
    """
    path = Path(config.file)
    arrays = load_arrays(path)
    if not {"noise", "states", "about"} <= set(arrays):
        raise DataError(
            f"pairs {path}: has no arrays noise, states and about; python -m fleet export --pairs writes them"
        )
    try:
        about = json.loads(arrays["about"].tobytes())
        checkpoint, solved = about["checkpoint"], {"solver": about["solver"], "guidance": about["guidance"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"pairs {path}: its array `about` is damaged ({error})") from None
    if checkpoint != f"sha256:{parent.card_sha256}":
        raise DataError(f"pairs {path} are from another checkpoint, {checkpoint}; name that one with --reflow")
    states, x0 = arrays["states"].astype(np.float32), arrays["noise"].astype(np.float32)
    if config.pairs > len(states):
        raise DataError(f"pairs {path} has {len(states)} pairs, fewer than the {config.pairs} requested")
    conditions = arrays.get("labels", arrays.get("conditions"))
    shape, expected = (None if array is None else array.shape[1:] for array in (conditions, data.conditions))
    if x0.shape != states.shape or states.shape[1:] != data.train.shape[1:] or shape != expected:
        raise DataError(
            f"pairs {path} has noise {x0.shape}, states {states.shape} and conditions {shape}; those of the data are "
            f"{data.train.shape[1:]} and {expected}"
        )
    rows = slice(config.pairs or len(states))
    return states[rows], x0[rows], None if conditions is None else _as_taken(path, conditions[rows], data), solved


def _as_taken(path: Path, conditions: NDArray[Any], data: DataSet) -> NDArray[Any]:
    """Return conditions as requests give them as the network takes them; raise a DataError if one is not a class."""
    entry = data.condition
    assert entry is not None  # noqa: S101  (the data have conditions of the same shape)
    if entry.classes is None:
        return entry.standardised(torch.from_numpy(conditions.astype(np.float64)), torch.float32).numpy()
    labels = labels_of(conditions.astype(np.int64), entry.classes, entry.names)
    if (labels < 0).any():
        raise DataError(f"pairs {path} has the label {conditions[labels < 0][0]}; expected {entry.describe()}")
    return labels


def _drawn(recipe: Recipe, config: ReflowConfig, parent: Checkpoint, data: DataSet, runs_dir: Path) -> Pairs:
    """Solve the parent's paths from noise, or read those that are stored already."""
    count = config.pairs or len(data.train)
    chosen = np.resize(draws.generator(recipe.seed, DrawPurpose.PAIRS).permutation(len(data.train)), count)
    conditions = None if data.conditions is None else data.conditions[chosen]
    facts = {**config.model_dump(exclude={"checkpoint"}), "pairs": count, "seed": recipe.seed, "data": data.digest}
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    folder = runs_dir / f"pairs-{key}"
    make_writable(folder, "pairs folder")
    x0 = noise(seed32(recipe.seed, DrawPurpose.PAIRS), 0, count, data.train.shape[1:], parent.dtype)
    files = {folder / f"{start // _PART:05d}.npy": slice(start, start + _PART) for start in range(0, count, _PART)}
    parts = []
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process, such as one of the same run, may be drawing the same pairs
        missing = not all(file.exists() for file in files)
        if missing:
            print(
                f"{recipe.name}: {count:,} pairs from {config.checkpoint} by {config.solver}, kept in {folder}",
                flush=True,
            )
        for file, rows in tqdm(files.items(), desc="pairs", unit="part", disable=not missing):
            own = None if conditions is None else torch.from_numpy(conditions[rows])
            if own is not None and own.is_floating_point():
                own = own.to(parent.dtype)
            field = Field(parent_velocity(parent, config.guidance), own)
            parts.append(_read(file, x0[rows]) if file.exists() else _solved(file, field, x0[rows], config.solver))
    return np.concatenate(parts), x0.to(torch.float32).numpy(), conditions


def _read(file: Path, x0: Tensor) -> NDArray[np.float32]:
    """Return the ends of the paths from x0 that are stored in a file."""
    try:
        ends = load_array(file)
    except (OSError, ValueError) as error:
        raise DataError(f"pairs {file} are damaged ({error}); delete the file to draw them again") from None
    if ends.shape != tuple(x0.shape) or ends.dtype != np.float32:
        raise DataError(f"pairs {file} have shape {ends.shape} {ends.dtype}; delete the file to draw them again")
    return ends


def _solved(file: Path, field: Field, x0: Tensor, solver: str) -> NDArray[np.float32]:
    """Return the ends of the paths from x0, and store them in a file."""
    solution = solve(field, x0, parse_solver(solver), progress=sys.stderr.isatty())
    failed = sum(status != Status.SUCCESS for status in solution.status)
    if failed:
        raise TrainingError(f"reflow: {failed} of {len(x0)} paths of the parent did not reach t = 1")
    ends, content = solution.x.to(torch.float32).numpy(), io.BytesIO()
    np.save(content, ends)
    try:
        write_atomically(file, content.getvalue())
    except OSError as error:
        raise TrainingError(f"pairs {file} cannot be written: {error.strerror}; make room and run this again") from None
    return ends
