"""Evaluation by class (`evaluate --by-class`): how many samples look like their class, and how sure a judge is of them.

The judge (`training.judges.train_judge`) is trained on the model's training data and tested on real data that neither
has seen. It is also sure of some pure noise, so the table has a row for noise as well as one for real data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.checkpoint.bound import REPORT_FILE
from models.checkpoint.loading import Checkpoint
from models.decoder import Decoder
from models.field import Field
from models.noise import noise
from models.pictures import draw, most
from training.data import data_of
from training.errors import TrainingError, UsageError
from training.folders import csv_of, make_writable, write_results
from training.judges import SURE, class_shares, flat, share_sure, train_judge
from training.measurement import keep
from training.solving import open_checkpoint, parse_solver, sampled

DEFAULT_SOLVERS = ("dopri5@1e-5",)
_GUIDANCES = (1.0, 2.0, 4.0)

MAX_CLASSES = 16
"""Columns of a sheet of pictures; further classes are left out."""

_SHOWN = 12  # classes that fit in a line of text

Samples = tuple[NDArray[Any], NDArray[np.int64]]
"""Samples (n, *event) and the class of each (n,)."""


@dataclass(frozen=True)
class ClassRow:
    """The judge's verdict on one set of samples.

    Attributes:
        samples: description of the samples: real data, noise, or a solver with its guidance.
        count: number of samples.
        agreement: share that is classified as its own class; None if the samples have no class.
        by_class: the same for each class; None for a class without samples.
        sure: share to which the judge gives a probability over 0.9 for any one class.
        taken_for: share that is classified as each class.
        nfe: velocity evaluations per sample, mean; a guided one takes two network rows. None if nothing was solved.
        failed: samples that did not reach t = 1; they are left out.
    """

    samples: str
    count: int
    agreement: float | None
    by_class: list[float | None]
    sure: float
    taken_for: list[float]
    nfe: float | None = None
    failed: int = 0


def evaluate_by_class(
    path: Path,
    solvers: Sequence[str],
    guidances: Sequence[float] | None,
    samples: int,
    out: Path,
    data_dir: Path | None = None,
) -> list[ClassRow]:
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
    checkpoint = open_checkpoint(path)
    names, strengths = _settings(checkpoint, samples, guidances)
    data, note = data_of(checkpoint, data_dir)
    if data is None or data.conditions is None or data.reference_conditions is None:
        raise TrainingError(f"{path}: --by-class needs the real data with labels: {note or 'the data have none'}")
    judge = train_judge(data.train, data.conditions)
    # Noise with the mean and spread of each coordinate of the data.
    drawn = np.random.default_rng(0).standard_normal(data.reference.shape)
    noise_like = data.train.mean(0) + data.train.std(0) * drawn
    print(head(names))
    rows: list[ClassRow] = []

    def add(row: ClassRow) -> None:
        rows.append(row)
        print(line(row), flush=True)

    add(_verdict("real data", judge, data.reference, data.reference_conditions, len(names)))
    add(_verdict("noise like the data", judge, noise_like, None, len(names)))
    shown: dict[str, Samples] = {"real": (data.reference, data.reference_conditions)}
    x0 = noise(0, 0, samples, checkpoint.card.event_of(), checkpoint.dtype)
    labels = torch.arange(samples) % len(names)
    for spec in specs:
        for guidance in strengths:
            name = f"{spec}, no condition" if guidance is None else f"{spec}, guidance {guidance:g}"
            field = Field(checkpoint.velocity)
            if guidance is not None:
                field = Field(checkpoint.velocity, labels, checkpoint.network_conditions, guidance)
            solution, ended = sampled(f"by class: {name}", field, x0, spec)
            ends, own = solution.x.numpy()[ended], labels.numpy()[ended]
            row = _verdict(name, judge, ends, None if guidance is None else own, len(names))
            add(replace(row, nfe=float(np.mean(solution.nfe)), failed=int((~ended).sum())))
            if spec == specs[0] and guidance is not None:
                shown[f"guidance {guidance:g}"] = (ends, own)
    write(rows, names, out, checkpoint.decoder, shown)
    record = {"judge": "scikit-learn MLPClassifier, hidden 256, 1,500 steps", "rows": rows}
    keep(checkpoint, by_class=record)
    order = f"; pictures from the top: {', '.join(shown)}" if len(checkpoint.decoder.data_shape) > 1 else ""
    print(f"written to {out} and to {path / REPORT_FILE}{order}")
    return rows


def _settings(
    checkpoint: Checkpoint, samples: int, guidances: Sequence[float] | None
) -> tuple[tuple[str, ...], list[float | None]]:
    """Return the names of the model's classes and the strengths to measure, None for no condition, all checked."""
    path, condition = checkpoint.path, checkpoint.card.condition
    classes = None if condition is None else condition.classes
    if condition is None or classes is None or classes < 2:
        raise UsageError(
            f"{path}: --by-class needs a model trained with at least two class labels; fit it with --conditional or "
            "--label"
        )
    if why := checkpoint.card.field.no_path:
        raise UsageError(f"{path} {why}: --by-class does not support that; evaluate it without --by-class")
    if not classes <= samples <= 1_000_000:
        raise UsageError(f"--samples is {samples}; it must be from {classes}, one per class, to 1000000")
    for guidance in guidances or ():
        if not math.isfinite(guidance):
            raise UsageError(f"--guidance is {guidance}; it must be a finite number")
        if guidance != 1 and not condition.nullable:
            raise UsageError(
                f"--guidance is {guidance:g}; this model was trained with condition_dropout = 0, so it must be 1"
            )
    if guidances is None:
        guidances = _GUIDANCES if condition.nullable else (1.0,)
    return condition.names or tuple(map(str, range(classes))), [*([None] if condition.nullable else []), *guidances]


def _verdict(name: str, judge: Any, samples: NDArray[Any], labels: NDArray[np.int64] | None, classes: int) -> ClassRow:
    """Return the judge's verdict on samples (n, *event) of some classes (n,)."""
    named = judge.predict(flat(samples))
    return ClassRow(
        samples=name,
        count=len(named),
        agreement=None if labels is None else float((named == labels).mean()),
        by_class=[None] * classes if labels is None else class_shares(named, labels, classes),
        sure=share_sure(judge, samples),
        taken_for=(np.bincount(named, minlength=classes) / len(named)).tolist(),
    )


def head(names: Sequence[str]) -> str:
    """Return the column names for `line`, cut to their width."""
    title = f"{'samples':<28} {'count':>6} {'own class':>9} {f'over {SURE}':>9} "
    return title + "".join(f" {name[:4]:>4}" for name in names[:_SHOWN])


def line(row: ClassRow) -> str:
    """Return the row as text, with the classes that fit on a screen; the CSV has all of them."""
    start = f"{row.samples:<28} {row.count:>6} {_share(row.agreement):>9} {_share(row.sure):>9} "
    return start + "".join(f" {_share(value, 0):>4}" for value in row.by_class[:_SHOWN])


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def write(
    rows: Sequence[ClassRow], names: Sequence[str], out: Path, decoder: Decoder, shown: Mapping[str, Samples]
) -> None:
    """Write `by-class.csv` and, if the data are pictures, a sheet of those shown, `by-class.png`.

    Raises:
        TrainingError: a file cannot be written.
    """
    shares = [[row.samples, row.count, row.agreement, row.sure, row.nfe, row.failed, *row.by_class] for row in rows]
    files = {
        "by-class.csv": csv_of([["samples", "count", "own_class", f"over_{SURE}", "nfe", "failed", *names], *shares])
    }
    if len(decoder.data_shape) > 1:
        sets: dict[str, Samples] = {}
        for name, (samples, labels) in shown.items():
            states = torch.from_numpy(np.asarray(samples, dtype=np.float32))
            sets[name] = (decoder.decode(states).numpy(), labels)
        files["by-class.png"] = sheet(sets, len(names))
    write_results(out, files)


def sheet(sets: Mapping[str, Samples], classes: int, rows: int = 2) -> bytes:
    """Draw the first pictures of each class as a PNG: a column for each class, a block of rows for each set in turn.

    Args:
        sets: pictures (n, height, width), or in colour (n, 3, height, width), from 0 to 1, and the class of each, (n,).
        classes: number of classes.
        rows: number of pictures per class in each set, fewer if they are large; a missing one is a crossed box.
    """
    fit = most(next(iter(sets.values()))[0].shape[1:]) // len(sets)
    columns = max(1, min(classes, MAX_CLASSES, fit))
    rows, blocks = max(1, min(rows, fit // columns)), []
    for pictures, labels in sets.values():
        block = np.full((rows, columns, *pictures.shape[1:]), np.nan)
        for label in range(columns):
            own = pictures[labels == label][:rows]
            block[: len(own), label] = own
        blocks.append(block.reshape(-1, *pictures.shape[1:]))
    return draw(np.concatenate(blocks), (0.0, 1.0), columns)
