"""The table by class: one line of text per set of samples, a CSV, and a sheet of pictures."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from models.regular import write_atomically
from training.errors import TrainingError
from training.judge import SURE

_SHOWN = 12  # classes that fit in a line of text


@dataclass(frozen=True)
class Row:
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


def head(names: Sequence[str]) -> str:
    """Return the column names for `line`, cut to their width."""
    title = f"{'samples':<28} {'count':>6} {'own class':>9} {f'over {SURE}':>9} "
    return title + "".join(f" {name[:4]:>4}" for name in names[:_SHOWN])


def line(row: Row) -> str:
    """Return the row as text, with the classes that fit on a screen; the CSV has all of them."""
    start = f"{row.samples:<28} {row.count:>6} {_share(row.agreement):>9} {_share(row.sure):>9} "
    return start + "".join(f" {_share(value, 0):>4}" for value in row.by_class[:_SHOWN])


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def write(
    rows: Sequence[Row],
    names: Sequence[str],
    out: Path,
    decoder: Decoder,
    shown: Mapping[str, tuple[NDArray[Any], NDArray[np.int64]]],
) -> None:
    """Write `by-class.csv` and, if the data are pictures, `by-class.png`.

    Args:
        rows: rows of the table.
        names: names of the classes.
        out: folder for both files.
        decoder: turns samples into pictures.
        shown: samples (n, *event) and their classes (n,) for the sheet, by title.

    Raises:
        TrainingError: a file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["samples", "count", "own_class", f"over_{SURE}", "nfe", "failed", *names])
    for row in rows:
        writer.writerow([row.samples, row.count, row.agreement, row.sure, row.nfe, row.failed, *row.by_class])
    try:
        write_atomically(out / "by-class.csv", text.getvalue().encode())
        if len(decoder.data_shape) > 1:
            write_atomically(out / "by-class.png", _sheet(decoder, shown, len(names)))
    except OSError as error:
        raise TrainingError(f"{out}: cannot be written: {error.strerror}") from None


def _sheet(decoder: Decoder, shown: Mapping[str, tuple[NDArray[Any], NDArray[np.int64]]], classes: int) -> bytes:
    from training.sheets import draw

    low, high = decoder.config.clip or (0.0, 1.0)

    def pictures(samples: NDArray[Any]) -> NDArray[np.floating]:
        decoded = decoder.decode(torch.from_numpy(np.asarray(samples, dtype=np.float32))).numpy()
        return (decoded - low) / (high - low)

    return draw({name: (pictures(found), of) for name, (found, of) in shown.items()}, classes)
