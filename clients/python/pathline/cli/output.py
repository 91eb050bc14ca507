"""Output of the commands: standard output, and writers that put samples into a file page by page."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from typing import IO

import numpy as np

from pathline._files import numbers, write_csv
from pathline._plot import draw, refusal
from pathline._response import printable
from pathline.cli.tally import Tally

STDOUT = "standard output"


def show(text: str) -> None:
    """Print to standard output, without buffering.

    Raises:
        BrokenPipeError: The reader has gone.
        OSError: It cannot be written; the error's `filename` is `STDOUT`.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error


def note(text: str) -> None:
    """Print to standard error what is not the result."""
    print(printable(text), file=sys.stderr)


def write_npy(file: IO[bytes], tally: Tally) -> None:
    """Write the samples alone as one array."""
    for number, page in enumerate(tally.pages()):
        samples = np.ascontiguousarray(page.samples)
        if number == 0:
            header = np.lib.format.header_data_from_array_1_0(samples)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (tally.total, *samples.shape[1:])})
        file.write(samples.reshape(-1).view(np.uint8).data)


def write_rows(file: IO[bytes], tally: Tally) -> None:
    """Write one line for each sample, one column for each number, after a line of names: the model's or ``x0,x1``."""
    for number, page in enumerate(tally.pages()):
        write_csv(file, page.named(page.samples, written=True), head=number == 0)


def write_npz(file: IO[bytes], tally: Tally) -> None:
    """Write the whole response, with the entries of the service's own npz: samples, nfe, t, status, trace_*, meta."""
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("samples.npy", "w", force_zip64=True) as entry:
            write_npy(entry, tally)
        for name, array in tally.entries().items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def write_json(file: IO[bytes], tally: Tally) -> None:
    """Write one object: the samples as nested lists (null where not finite), then the rest of the responses."""
    for number, page in enumerate(tally.pages()):
        rows = json.dumps(numbers(page.samples), allow_nan=False, separators=(",", ":"))[1:-1]
        file.write((('{"samples":[' if number == 0 else ",\n") + rows).encode())
    meta = json.dumps(tally.describe() | tally.log_densities(), allow_nan=False)
    file.write(b"],\n" + meta[1:].encode() + b"\n")


def write_png(file: IO[bytes], tally: Tally) -> None:
    """Write a picture: a scatter plot of points in the plane, or a sheet of pictures."""
    pages = []
    for page in tally.pages():
        if why := refusal(tally.total, page.samples.shape[1:]):
            raise ValueError(why)
        pages.append(page.samples)
    file.write(draw(np.concatenate(pages), scale=3))


FORMATS: dict[str, Callable[[IO[bytes], Tally], None]] = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".png": write_png,
    ".csv": write_rows,
    ".json": write_json,
}
"""Writer for each extension."""
