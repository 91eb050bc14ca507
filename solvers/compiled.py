"""Compiled loops: plain Python over NumPy arrays, compiled by Numba the first time it runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numba.core.config
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Records = Any
"""(n,) NumPy records, of `state.LANE` or `bank.ROW`; type checkers do not know the fields of records."""
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@cache
def _cache_folder(package: Path) -> str:
    """Return the cache folder for a package's machine code; its name depends on the package's sources.

    Numba recompiles a function when the file that defines it changes, but not when a function that it calls does. So
    the folder's name is a hash of all files of the package and of this one, which every compiled function uses. Numba
    also ignores folders that it cannot write to. So the cache that an image ships beside its read-only sources is
    copied into `NUMBA_CACHE_DIR`.
    """
    sources = [path for folder in {Path(__file__).parent, package} for path in folder.glob("*.py")]
    digest = sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    shipped = package / "__pycache__" / f"compiled-{digest[:16]}"
    if not (elsewhere := os.environ.get("NUMBA_CACHE_DIR")):
        return str(shipped)
    kept = Path(elsewhere) / shipped.name
    if shipped.is_dir() and not kept.exists():
        _copy(shipped, kept)
    return str(kept)


def _copy(shipped: Path, kept: Path) -> None:
    """Copy a folder atomically; if that fails, the loops are compiled again."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as apart:
            shutil.copytree(shipped, Path(apart) / kept.name).rename(kept)
    except (OSError, shutil.Error):  # the folder is not writable, or another process was first
        return


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of numbers and NumPy arrays.

    It runs without fast-math, so every operation is rounded as written and in the order written; with NumPy's rules for
    division by zero; and without Python's global lock, so that a server can answer while lanes compute. The machine
    code is cached on disk; if the cache folder is not writable, each process compiles again.
    """
    options = {"nogil": True, "error_model": "numpy"}
    folder = _cache_folder(Path(function.__code__.co_filename).parent)
    setattr(numba.core.config, "CACHE_DIR", folder)  # noqa: B010  (type checkers do not know it)
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder for the cache
        return cast("Callable[P, R]", numba.njit(**options)(function))


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@compiled
def array_at(address: int, shape: Any, dtype: Any) -> Any:
    """View the memory at a tensor's address as a contiguous array; in compiled loops only, while the tensor is alive.

    Tensors that live for one call are passed to the loops this way: right after a network call, when the caches are
    cold, making a NumPy array from a tensor and unpacking it takes longer than the loop over its numbers.
    """
    return carray(_pointer(address), shape, dtype)  # pyright: ignore[reportCallIssue]  (the context is Numba's)
