"""Result files, which never appear half-written under their final name."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from pathline.errors import PathlineError

EXTENSIONS = (".npz", ".npy", ".png", ".csv", ".json")


def save(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    columns: Mapping[str, np.ndarray],
    picture: Callable[[], bytes],
) -> Path:
    """Write one result in the format of the path's extension.

    Args:
        path: Where to write.
        arrays: All arrays by name, the main one first.
        meta: Everything else, as plain values.
        columns: The table of a CSV file, (n,) each.
        picture: Makes the PNG.

    Raises:
        ValueError: The extension is not one of `EXTENSIONS`, or there is no picture.
        OSError: The file cannot be written.
    """
    parts = dict(_real(arrays))
    extension = path.suffix.lower()
    if extension not in EXTENSIONS:
        raise ValueError(f"{str(path)!r} has no known extension; use one of {', '.join(EXTENSIONS)}")
    content = picture() if extension == ".png" else b""  # before the file is created
    with replacing(path) as file:
        if extension == ".npz":
            parts["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
            np.savez(file, **cast("Any", parts))
        elif extension == ".npy":
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
        elif extension == ".csv":
            write_csv(file, columns)
        elif extension == ".json":
            lists = {name: numbers(array) for name, array in parts.items() if name not in meta}
            file.write(json.dumps({**lists, **meta}, allow_nan=False).encode() + b"\n")
        else:
            file.write(content)
    return path


def _real(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays by name; a complex one as its real and imaginary parts, as the service writes it."""
    for name, array in arrays.items():
        if array.dtype.kind == "c":
            yield from ((f"{name}_real", np.real(array)), (f"{name}_imag", np.imag(array)))
        else:
            yield name, array


def write_csv(file: IO[bytes], columns: Mapping[str, np.ndarray], head: bool = True) -> None:
    """Write columns as CSV with enough digits to read the same bits back.

    Args:
        file: Where to write.
        columns: Name -> (n,).
        head: Whether to begin with a line of names.
    """
    if head:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(columns)
        file.write(text.getvalue().encode())
    texts = []
    for column in columns.values():
        digits = f".{9 if column.dtype.itemsize <= 4 else 17}g" if column.dtype.kind == "f" else ""
        texts.append([format(value, digits) for value in column.tolist()])
    for row in zip(*texts, strict=True):
        file.write((",".join(row) + "\n").encode())


def numbers(array: np.ndarray) -> list[Any]:
    """Return an array as lists; JSON has no NaN, so non-finite values become null."""
    if array.dtype.kind not in "fc" or np.isfinite(array).all():
        return array.tolist()
    plain = array.astype(object)
    plain[~np.isfinite(array)] = None
    return plain.tolist()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside `path` that takes its name if the block succeeds, and is removed if it fails.

    Raises:
        OSError: It cannot be written there; raised before the block begins if this is known by then.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file", str(path))
    if target.exists() and not target.is_file():  # a file would replace it, as root can do to /dev/full
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
            if target.exists() and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)  # a file that is private stays so
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except PathlineError:  # some of them are OSErrors too, but not about this file
        raise
    except OSError as error:  # without a number for an array that NumPy could write in part
        reason = error.strerror or error
        raise OSError(
            error.errno or errno.ENOSPC,
            f"not written ({reason}), and the partial file was removed; make room, or choose another place",
            str(path),
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
