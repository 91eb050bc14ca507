"""Evaluation by class (`evaluate --by-class`): how many samples look like their class, and how sure a judge is of them.

The judge (`training.judge`) is trained on the model's training data and tested on real data that neither has seen. It
is also sure of some pure noise, so the table has a row for noise as well as one for real data.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.report import REPORT_FILE
from models.guidance import Guided
from models.noise import noise
from solvers import SolverSpec, Status
from training.class_table import Row, head, line, write
from training.dataset import DataSet
from training.errors import TrainingError, UsageError
from training.files import make_writable
from training.judge import Judge, train_judge
from training.measurement import keep
from training.recorded import data_of
from training.solving import parse_solver, solve

DEFAULT_SOLVERS = ("dopri5@1e-5",)
_GUIDANCES = (1.0, 2.0, 4.0)


def evaluate_by_class(
    path: Path,
    solvers: Sequence[str],
    guidances: Sequence[float] | None,
    samples: int,
    out: Path,
    data_dir: Path | None = None,
) -> list[Row]:
    """Judge samples by class, print a table, write CSV and a sheet of pictures to `out`, add the numbers to the report.

    Args:
        path: a checkpoint that was trained with class labels, with a recipe from which its data can be recreated.
        solvers: as for `training.solving.parse_solver`.
        guidances: strengths of classifier-free guidance; None is 1, 2 and 4, or 1 alone for a model without a trained
            null. A model with one is also sampled without its condition.
        samples: number of samples in each row of the table, spread evenly over the classes.
        out: folder for `by-class.csv` and, for pictures, `by-class.png`.
        data_dir: folder with data files, or None.

    Raises:
        UsageError: the model has no class labels, or a number is not allowed.
        TrainingError: the checkpoint or its data cannot be loaded, no sample reached t = 1, or a file cannot be
            written.
    """
    specs = [parse_solver(text) for text in solvers]
    make_writable(out, "output folder")
    try:
        checkpoint = load(path)
    except CheckpointError as error:
        raise TrainingError(str(error)) from None
    names = _names(checkpoint, samples)
    if checkpoint.card.field.takes_ends:
        raise UsageError(
            f"{path} is a field of average velocity, which --by-class does not support; evaluate it without --by-class"
        )
    takes = checkpoint.conditioning
    nullable = takes is not None and takes.nullable
    guidances = _guidances(nullable, guidances)
    data, note = data_of(checkpoint, data_dir)
    if data is None or data.conditions is None or data.reference_conditions is None:
        raise TrainingError(f"{path}: --by-class needs the real data with labels: {note or 'the data have none'}")
    judge = train_judge(data.train, data.conditions)
    rows = [
        _row("real data", judge, data.reference, data.reference_conditions, len(names)),
        _row("noise like the data", judge, _noise_like(data), None, len(names)),
    ]
    shown = {"real": (data.reference, data.reference_conditions)}
    print(head(names), *map(line, rows), sep="\n", flush=True)
    x0 = noise(0, 0, samples, checkpoint.card.event_of(), checkpoint.dtype)
    labels = torch.arange(samples) % len(names)
    for spec in specs:
        for guidance in [*([None] if nullable else []), *guidances]:
            name = f"{spec}, no condition" if guidance is None else f"{spec}, guidance {guidance:g}"
            row, found, of = _sampled(name, judge, checkpoint, spec, x0, labels, guidance)
            rows.append(row)
            print(line(row), flush=True)
            if spec == specs[0] and guidance is not None:
                shown[f"guidance {guidance:g}"] = (found, of)
    write(rows, names, out, checkpoint.decoder, shown)
    record = {"judge": "scikit-learn MLPClassifier, hidden 256, 1,500 steps", "rows": [asdict(row) for row in rows]}
    keep(checkpoint, by_class=record)
    print(f"written to {out} and to {path / REPORT_FILE}")
    return rows


def _names(checkpoint: Checkpoint, samples: int) -> tuple[str, ...]:
    """Return the names of the model's classes, if there are enough samples for all of them."""
    condition = checkpoint.card.condition
    classes = None if condition is None else condition.classes
    if condition is None or classes is None or classes < 2:
        raise UsageError(
            f"{checkpoint.path}: --by-class needs a model trained with at least two class labels; fit it with "
            "--conditional or --label"
        )
    if not classes <= samples <= 1_000_000:
        raise UsageError(f"--samples is {samples}; it must be from {classes}, one per class, to 1000000")
    return condition.names or tuple(map(str, range(classes)))


def _guidances(nullable: bool, requested: Sequence[float] | None) -> Sequence[float]:
    """Return the guidance strengths to measure, after checking that the model supports them."""
    if requested is None:
        return _GUIDANCES if nullable else (1.0,)
    for guidance in requested:
        if not math.isfinite(guidance):
            raise UsageError(f"--guidance is {guidance}; it must be a finite number")
        if guidance != 1 and not nullable:
            raise UsageError(
                f"--guidance is {guidance:g}; this model was trained with condition_dropout = 0, so it must be 1"
            )
    return requested


def _noise_like(data: DataSet) -> NDArray[np.float64]:
    """Normal noise with the mean and spread of each coordinate of the data, in the shape of `data.reference`."""
    drawn = np.random.default_rng(0).standard_normal(data.reference.shape)
    return data.train.mean(0) + data.train.std(0) * drawn


def _sampled(
    name: str,
    judge: Judge,
    checkpoint: Checkpoint,
    spec: SolverSpec,
    x0: Tensor,
    labels: Tensor,
    guidance: float | None,
) -> tuple[Row, NDArray[Any], NDArray[np.int64]]:
    """Sample from the noise x0 at one guidance (None: no condition); return the verdict, the samples, their classes."""
    takes = checkpoint.conditioning
    assert takes is not None and takes.single is not None and takes.single.classes is not None  # noqa: S101, PT018
    guided = Guided(checkpoint.velocity, takes)

    def velocity(x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        if guidance is None:
            return guided(x, t)
        return guided(x, t, label, torch.full_like(t, guidance))

    solution = solve(velocity, x0, labels, spec)
    ended = np.array([status == Status.SUCCESS for status in solution.status])
    if not ended.any():
        raise TrainingError(f"by class: {name}: none of {len(x0)} samples reached t = 1; the network is not usable")
    found, of = solution.x.numpy()[ended], labels.numpy()[ended]
    row = _row(name, judge, found, None if guidance is None else of, takes.single.classes)
    return replace(row, nfe=float(np.mean(solution.nfe)), failed=int((~ended).sum())), found, of


def _row(name: str, judge: Judge, samples: NDArray[Any], of: NDArray[np.int64] | None, classes: int) -> Row:
    """Return the judge's verdict on samples (n, *event) of the classes `of` (n,)."""
    named = judge.named(samples)
    agreement = None if of is None else float((named == of).mean())
    by_class: list[float | None] = [None] * classes
    if of is not None:
        own = [named[of == label] == label for label in range(classes)]
        by_class = [float(one.mean()) if one.size else None for one in own]
    taken = np.bincount(named, minlength=classes) / len(named)
    return Row(name, len(named), agreement, by_class, judge.sure(samples), taken.tolist())
