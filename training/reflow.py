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
from collections.abc import Iterator
from contextlib import contextmanager
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
from models.noise import noise
from models.regular import write_atomically
from selection.error import Field, solve
from solvers import Status
from training import draws
from training.arrays import load_arrays
from training.config import Recipe, ReflowConfig
from training.dataset import DataSet
from training.draws import DrawPurpose, seed32
from training.errors import DataError, TrainingError
from training.folders import make_writable
from training.parents import ParentVelocity, check_fit, load_parent
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
    given = recipe.reflow
    assert given is not None  # noqa: S101  (callers check)
    parent = load_parent(given, "reflow")
    check_fit(parent.card, data, given, "reflow")
    if given.file:
        return _from_file(given, parent.card, data)
    count = given.pairs or len(data.train)
    chosen = np.resize(draws.generator(recipe.seed, DrawPurpose.PAIRS).permutation(len(data.train)), count)
    conditions = None if data.conditions is None else data.conditions[chosen]
    folder = runs_dir / f"pairs-{_key(recipe, data, count)}"
    make_writable(folder, "pairs folder")
    x0 = noise(seed32(recipe.seed, DrawPurpose.PAIRS), 0, count, data.train.shape[1:], parent.dtype)
    parts = []
    starts = range(0, count, _PART)
    with _alone(folder):
        missing = sum(not _part(folder, start).exists() for start in starts)
        if missing:
            print(
                f"{recipe.name}: {count:,} pairs from {given.checkpoint} by {given.solver}, kept in {folder}",
                flush=True,
            )
        for start in tqdm(starts, desc="pairs", unit="part", disable=not missing):
            rows = slice(start, start + _PART)
            selected = None if conditions is None else torch.from_numpy(conditions[rows])
            if selected is not None and selected.is_floating_point():
                selected = selected.to(parent.dtype)
            parts.append(_ends(_part(folder, start), parent, x0[rows], selected, given.solver, given.guidance))
    solved = {"solver": given.solver, "guidance": given.guidance}
    return _paired(given, parent.card, data, np.concatenate(parts), x0.to(torch.float32).numpy(), conditions, solved)


def _paired(
    given: ReflowConfig,
    parent: Card,
    data: DataSet,
    ends: NDArray[np.float32],
    x0: NDArray[np.float32],
    conditions: NDArray[Any] | None,
    solved: dict[str, Any],
) -> DataSet:
    """Return the data set with pairs in place of its samples, and a card that records their origin."""
    reflow = {"parent": parent.name, "parent_weights_sha256": given.sha256, "data_sha256": data.digest}
    card = {**data.card, "reflow": reflow | {"pairs": len(ends), **solved}}
    return replace(
        data,
        train=ends,
        noise=x0,
        conditions=conditions,
        card={key: value for key, value in card.items() if key != "sha256"},
    )


def _from_file(given: ReflowConfig, parent: Card, data: DataSet) -> DataSet:
    """Return the data set with pairs from a file.

    Raises:
        DataError: it cannot be read, or has no pairs of this parent and these conditions.
    """
    path = Path(given.file)
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
    if given.pairs > len(states):
        raise DataError(f"pairs {path} has {len(states)} pairs, fewer than the {given.pairs} requested")
    conditions = arrays.get("labels", arrays.get("conditions"))
    wanted = None if data.conditions is None else data.conditions.shape[1:]
    found = None if conditions is None else conditions.shape[1:]
    if x0.shape != states.shape or states.shape[1:] != data.train.shape[1:] or wanted != found:
        raise DataError(
            f"pairs {path} has noise {x0.shape}, states {states.shape} and conditions {found}; those of the data are "
            f"{data.train.shape[1:]} and {wanted}"
        )
    rows = slice(given.pairs or len(states))
    selected = None if conditions is None else _as_taken(path, conditions[rows], data)
    return _paired(given, parent, data, states[rows], x0[rows], selected, solved)


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


def _key(recipe: Recipe, data: DataSet, count: int) -> str:
    assert recipe.reflow is not None  # noqa: S101
    decides: dict[str, Any] = {
        **recipe.reflow.model_dump(exclude={"checkpoint"}), "pairs": count, "seed": recipe.seed, "data": data.digest
    }  # fmt: skip
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process draws pairs into the folder, such as one of the same run."""
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _part(folder: Path, start: int) -> Path:
    return folder / f"{start // _PART:05d}.npy"


def _ends(
    file: Path, parent: Checkpoint, x0: Tensor, conditions: Tensor | None, solver: str, guidance: float | None
) -> NDArray[np.float32]:
    """Return the ends of the paths from x0, read from the file if it exists, else solved and stored."""
    if file.exists():
        try:
            found = load_array(file)
        except (OSError, ValueError) as error:
            raise DataError(f"pairs {file} are damaged ({error}); delete the file to draw them again") from None
        if found.shape != tuple(x0.shape) or found.dtype != np.float32:
            raise DataError(f"pairs {file} have shape {found.shape} {found.dtype}; delete the file to draw them again")
        return found
    field = Field(ParentVelocity(parent, guidance), conditions)
    solution = solve(field, x0, parse_solver(solver), progress=sys.stderr.isatty())
    failed = sum(status != Status.SUCCESS for status in solution.status)
    if failed:
        raise TrainingError(f"reflow: {failed} of {len(x0)} paths of the parent did not reach t = 1")
    ends = solution.x.to(torch.float32).numpy()
    content = io.BytesIO()
    np.save(content, ends)
    try:
        write_atomically(file, content.getvalue())
    except OSError as error:
        raise TrainingError(f"pairs {file} cannot be written: {error.strerror}; make room and run this again") from None
    return ends
