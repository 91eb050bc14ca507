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
"""(n,) NumPy records, of `state.LANE` or `bank.ROW`; type checkers know no fields of records."""
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@cache
def _cache_folder(package: Path) -> str:
    """The cache folder of a package's machine code, one for each state of its sources.

    Numba looks only at the file that a function stands in, not at what that function calls; so all files of the
    package enter the folder's name, and those of this one, which every compiled function uses. Numba also uses no
    folder that it cannot write; so what an image brings along beside the sources, where nothing can be written, is
    copied to where `NUMBA_CACHE_DIR` says.
    """
    sources = [path for folder in {Path(__file__).parent, package} for path in folder.glob("*.py")]
    digest = sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    brought = package / "__pycache__" / f"compiled-{digest[:16]}"
    if not (elsewhere := os.environ.get("NUMBA_CACHE_DIR")):
        return str(brought)
    kept = Path(elsewhere) / brought.name
    if brought.is_dir() and not kept.exists():
        _copy(brought, kept)
    return str(kept)


def _copy(brought: Path, kept: Path) -> None:
    """Copy a folder so that it appears as a whole; if that fails, the loops are compiled anew."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as apart:
            shutil.copytree(brought, Path(apart) / kept.name).rename(kept)
    except (OSError, shutil.Error):  # nothing can be written there, or another process was first
        return


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of numbers and NumPy arrays.

    Without fast-math, so every operation is rounded as written and in the order written; with NumPy's rules for
    division by zero; without Python's global lock, so that a server answers while lanes compute. The machine code
    is kept on disk; where nothing can be written, each process compiles anew.
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
    """The memory at a tensor's address as a contiguous array; for compiled loops only, while the tensor is held.

    Tensors that live for one call come to the loops this way: right after a network call, when nothing is in the
    caches, making a NumPy array of a tensor and unpacking it takes longer than the loop over its numbers.
    """
    return carray(_pointer(address), shape, dtype)  # pyright: ignore[reportCallIssue]  (the context is Numba's)
