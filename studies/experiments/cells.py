"""Cells, the results on disk: each measurement is one JSON file named by its inputs, and is never repeated."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.regular import write_atomically
from training.errors import StateError, TrainingError
from training.folders import make_writable


class Missing(Exception):  # noqa: N818  (not a fault)
    """A cell has not been measured."""


class Cells:
    """The cells of one experiment.

    Attributes:
        folder: folder of the files.
        seconds: measuring time of the cells requested so far, including those of earlier processes.
        found: number of cells that already existed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0
        self.found = 0

    def get(self, label: str, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, from disk if it was measured before.

        Args:
            label: first part of the file's name.
            key: everything that determines the result, JSON-ready.
            compute: returns the result: numbers, strings, None, NumPy arrays, and lists and dicts of them.

        Raises:
            StateError: the file is damaged.
            TrainingError: it cannot be written.
        """
        text = json.dumps(plain(key), sort_keys=True)
        path = self.folder / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
        if path.exists():
            stored = _read(path)
            self.found += 1
        else:
            make_writable(self.folder, "result folder")
            begin = time.perf_counter()
            value = plain(compute())
            stored = {"key": json.loads(text), "seconds": round(time.perf_counter() - begin, 2), "value": value}
            try:
                write_atomically(path, json.dumps(stored, allow_nan=False).encode())
            except OSError as error:
                raise TrainingError(f"result {path} cannot be written: {error.strerror}; make room there") from None
            print(f"    {label}: {stored['seconds']:.1f} s", flush=True)
        self.seconds += stored["seconds"]
        return stored["value"]


class Measured(Cells):
    """Cells that are only read from disk, never measured."""

    def get(self, label: str, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Return an earlier result.

        Raises:
            Missing: there is none.
            StateError: the file is damaged.
        """

        def missing() -> None:
            raise Missing(label)

        return super().get(label, key, missing)


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        if isinstance(stored["seconds"], int | float) and "value" in stored:
            return stored
        reason = "not a result"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = type(error).__name__
    raise StateError(f"result {path} is damaged ({reason}); delete it to measure it again")


def plain(value: Any) -> Any:
    """Turn NumPy numbers and arrays, tuples and mappings into JSON types, and non-finite numbers into None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
