"""Reflow: pairs of noise and the ends of a published model's paths, to train a straighter flow on.

Liu, Gong & Liu, "Flow Straight and Fast: Learning to Generate and Transfer Data with Rectified Flow", ICLR 2023,
section 2.2: training on the coupling (x0, end of the path from x0) does not raise any convex transport cost, and
makes paths straighter, so that fewer steps reach their ends.
"""

import fcntl
import hashlib
import io
import json
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

from models.checkpoint.loading import Checkpoint
from models.noise import noise
from solvers import Status
from training import draws
from training.config import Recipe
from training.dataset import DataSet
from training.draws import Purpose, seed32
from training.errors import DataError, TrainingError
from training.files import make_writable, write_atomically
from training.parents import ParentVelocity, check_fit, load_parent
from training.solving import parse_solver, solve

_PART = 2048
"""Pairs that are solved and stored at once."""


def with_pairs(recipe: Recipe, data: DataSet, runs_dir: Path) -> DataSet:
    """Return the data set with pairs of the parent in place of its samples; the reference stays.

    Pairs are drawn once and stored in parts under `runs_dir`; a stopped run resumes with the missing parts.
    The labels of a conditional model are drawn from those of the data.

    Args:
        recipe: with `reflow`, pinned (see `pin_parent`).
        data: the training data of the parent.
        runs_dir: folder for the state of unfinished runs.

    Raises:
        UsageError: the parent's samples have another shape or condition, it cannot be guided as asked, or it was
            trained on other data.
        TrainingError: a path did not reach its end, or a part cannot be written.
    """
    given = recipe.reflow
    assert given is not None  # noqa: S101  (callers ask)
    parent = load_parent(given, "reflow")
    check_fit(parent.card, data, given, "reflow")
    count = given.pairs or len(data.train)
    chosen = draws.generator(recipe.seed, Purpose.PAIRS).integers(len(data.train), size=count)
    conditions = None if data.conditions is None else data.conditions[chosen]
    folder = runs_dir / f"pairs-{_key(recipe, data, count)}"
    make_writable(folder, "pairs folder")
    x0 = noise(seed32(recipe.seed, Purpose.PAIRS), 0, count, data.train.shape[1:], parent.dtype)
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
            told = None if conditions is None else torch.from_numpy(conditions[rows])
            if told is not None and told.is_floating_point():
                told = told.to(parent.dtype)
            parts.append(_ends(_part(folder, start), parent, x0[rows], told, given.solver, given.guidance))
    card = {
        **data.card,
        "reflow": {
            "parent": parent.card.name,
            "parent_weights_sha256": given.sha256,
            "data_sha256": data.digest,
            "pairs": count,
            "solver": given.solver,
            "guidance": given.guidance,
        },
    }
    return replace(
        data,
        train=np.concatenate(parts),
        noise=x0.to(torch.float32).numpy(),
        conditions=conditions,
        card={key: value for key, value in card.items() if key != "sha256"},
    )


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
    """The ends of the paths from x0, read from the file if it exists; else solved and stored."""
    if file.exists():
        try:
            found = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"pairs {file} are damaged ({error}); delete the file to draw them again") from None
        if found.shape != tuple(x0.shape) or found.dtype != np.float32:
            raise DataError(f"pairs {file} have shape {found.shape} {found.dtype}; delete the file to draw them again")
        return found
    solution = solve(ParentVelocity(parent, guidance), x0, conditions, parse_solver(solver))
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
