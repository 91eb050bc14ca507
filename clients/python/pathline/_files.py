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
        ValueError: The extension is none of .npz, .npy, .png, .csv and .json, or there is no picture.
        OSError: The file cannot be written.
    """
    parts: dict[str, np.ndarray] = {}
    for name, array in arrays.items():  # a complex one as its real and imaginary parts, as the service writes it
        is_complex = array.dtype.kind == "c"
        parts |= {f"{name}_real": np.real(array), f"{name}_imag": np.imag(array)} if is_complex else {name: array}

    def write_npz(file: IO[bytes]) -> None:
        document = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        np.savez(file, **cast("Any", {**parts, "meta": document}))

    def write_json(file: IO[bytes]) -> None:
        lists = {name: numbers(array) for name, array in parts.items() if name not in meta}
        file.write(json.dumps({**lists, **meta}, allow_nan=False).encode() + b"\n")

    writers: dict[str, Callable[[IO[bytes]], object]] = {
        ".npz": write_npz,
        ".npy": lambda file: np.save(file, next(iter(arrays.values())), allow_pickle=False),
        ".png": lambda file: file.write(content),
        ".csv": lambda file: write_csv(file, columns),
        ".json": write_json,
    }
    write = writers.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"{str(path)!r} has no known extension; use one of {', '.join(writers)}")
    content = picture() if path.suffix.lower() == ".png" else b""  # before the file is created
    with replacing(path) as file:
        write(file)
    return path


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
