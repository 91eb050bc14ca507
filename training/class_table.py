"""The table by class: one line of text a set of samples, a CSV, and a sheet of pictures."""

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
from training.errors import TrainingError
from training.files import write_atomically
from training.judge import SURE

_SHOWN = 12  # classes that a line of text has room for


@dataclass(frozen=True)
class Row:
    """The judge's verdict on one set of samples.

    Attributes:
        samples: what they are, in words: real data, noise, or a solver with its guidance.
        count: how many there are.
        agreement: share that is taken for its own class; None where the samples have none.
        by_class: the same for each class; None where it has no sample.
        sure: share with a probability over 0.9 of one certain class, whichever.
        taken_for: share that is taken for each class.
        nfe: velocity evaluations a sample, mean; one guided evaluation asks the network for two rows. None: no solve.
        failed: samples that the solver did not bring to the end; they are left out.
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
    """The names of the columns of `line`, cut to their width."""
    title = f"{'samples':<28} {'count':>6} {'own class':>9} {f'over {SURE}':>9} "
    return title + "".join(f" {name[:4]:>4}" for name in names[:_SHOWN])


def line(row: Row) -> str:
    """The row as text, with as many classes as a screen has room for; the CSV has all."""
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
    """Write `by-class.csv` and, where the data are pictures, `by-class.png`.

    Args:
        rows: of the table.
        names: of the classes.
        out: folder of both.
        decoder: makes pictures of samples.
        shown: samples (n, *event) and their classes (n,) for the sheet, by name.

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
