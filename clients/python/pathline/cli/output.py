"""Standard output, and samples into a file: page by page, and never half-written under its final name."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from pathline._picture import draw, refusal
from pathline.cli.tally import Tally
from pathline.errors import PathlineError

STDOUT = "standard output"


def show(text: str) -> None:
    """Print to standard output, at once.

    Raises:
        BrokenPipeError: Nobody reads it.
        OSError: It cannot be written; the error's `filename` is `STDOUT`.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside `path` that takes its name when the block ends well, and vanishes when it does not.

    Raises:
        OSError: It cannot be written there; raised before the block begins where that can be known.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file", str(path))
    if target.exists() and not target.is_file():  # it would be replaced by a file, as /dev/full by root
        raise OSError(22, "is a device, not a file; choose another place", str(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise type(error)(
            error.errno, f"cannot be written ({error.strerror}); choose another place", str(path)
        ) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except PathlineError:  # some of them are OSErrors too, but not about this file
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"not written ({error.strerror}), and nothing is left of it; make room, or choose another place",
            str(path),
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_npy(file: IO[bytes], tally: Tally) -> None:
    """Write the samples alone as one array."""
    for number, page in enumerate(tally.pages()):
        samples = np.ascontiguousarray(page.samples)
        if number == 0:
            header = np.lib.format.header_data_from_array_1_0(samples)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (tally.total, *samples.shape[1:])})
        file.write(samples.reshape(-1).view(np.uint8).data)


def write_csv(file: IO[bytes], tally: Tally) -> None:
    """Write one line for each sample, one column for each number, after a line of names ``x0,x1,...``."""
    for number, page in enumerate(tally.pages()):
        rows = page.samples.reshape(len(page), -1)
        if number == 0:
            file.write((",".join(f"x{column}" for column in range(rows.shape[1])) + "\n").encode())
        digits = 9 if rows.dtype.itemsize <= 4 else 17  # enough to read the same bits back
        np.savetxt(file, rows, fmt=f"%.{digits}g", delimiter=",")


def write_npz(file: IO[bytes], tally: Tally) -> None:
    """Write all of the answer, with the entries of the service's own npz: samples, nfe, t, status, trace_*, meta."""
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("samples.npy", "w", force_zip64=True) as entry:
            write_npy(entry, tally)
        for name, array in tally.entries().items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def write_json(file: IO[bytes], tally: Tally) -> None:
    """Write one object: the samples as nested lists (null where not finite), then what the answers say beside them."""
    for number, page in enumerate(tally.pages()):
        rows = json.dumps(numbers(page.samples), allow_nan=False, separators=(",", ":"))[1:-1]
        file.write((('{"samples":[' if number == 0 else ",\n") + rows).encode())
    said = json.dumps(tally.describe(), allow_nan=False)
    file.write(b"],\n" + said[1:].encode() + b"\n")


def write_png(file: IO[bytes], tally: Tally) -> None:
    """Write a picture: a scatter plot of points in the plane, or a sheet of pictures."""
    pages = []
    for page in tally.pages():
        if why := refusal(tally.total, page.samples.shape[1:]):
            raise ValueError(why)
        pages.append(page.samples)
    file.write(draw(np.concatenate(pages)))


def numbers(array: np.ndarray) -> list[Any]:
    """Return an array as lists; JSON has no NaN, so what is not finite becomes null."""
    if np.isfinite(array).all():
        return array.tolist()
    plain = array.astype(object)
    plain[~np.isfinite(array)] = None
    return plain.tolist()


FORMATS: dict[str, Callable[[IO[bytes], Tally], None]] = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".png": write_png,
    ".csv": write_csv,
    ".json": write_json,
}
"""Writer for each extension."""
