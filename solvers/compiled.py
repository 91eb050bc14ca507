"""Compiled loops: plain Python over NumPy arrays, compiled by Numba the first time it runs."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numba.core.config
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

_log = logging.getLogger("pathline")
_DIGEST = sha256().digest_size

P = ParamSpec("P")
R = TypeVar("R")

Records = Any
"""(n,) NumPy records, of `state.LANE` or `plan.ROW`; type checkers do not know the fields of records."""
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
    copy = Path(elsewhere) / shipped.name
    if shipped.is_dir() and not copy.exists():
        _copy(shipped, copy)
    return str(copy)


def _copy(shipped: Path, target: Path) -> None:
    """Copy a folder atomically; if that fails, the loops are compiled again."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as apart:
            shutil.copytree(shipped, Path(apart) / target.name).rename(target)
    except (OSError, shutil.Error):  # the folder is not writable, or another process was first
        return


class _IndexFile(IndexDataCacheFile):
    """The files of one function, with a hash behind each: damaged machine code would end the process."""

    def _dump(self, obj: Any) -> bytes:
        data = super()._dump(obj)
        return data + sha256(data).digest()

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        if sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(data)  # noqa: S301  (written by this process, or by one of the same installation)


class _Cache(FunctionCache):
    """A cache that is never in the way: where it is damaged, or cannot be written, the function is compiled anew."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        plain = self._cache_file
        self._cache_file = _IndexFile(plain._cache_path, self._impl.filename_base, plain._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever a damaged file makes of pickle, Numba or LLVM
            _report(self.cache_path, f"cannot be used ({type(error).__name__}: {error})")
            try:
                self.flush()
            except OSError:
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _report(self.cache_path, f"cannot be written ({type(error).__name__}: {error})")
            self.disable()


@cache
def _report(folder: str, fault: str) -> None:
    _log.warning("%s: the cache of compiled loops %s; they are compiled anew, which takes half a minute", folder, fault)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of numbers and NumPy arrays.

    It runs without fast-math, so every operation is rounded as written and in the order written; with NumPy's rules for
    division by zero; and without Python's global lock, so that a server can answer while lanes compute. The machine
    code is cached on disk; if the cache folder is damaged, full or not writable, the loops are compiled again.
    """
    options = {"nogil": True, "error_model": "numpy"}
    folder = _cache_folder(Path(function.__code__.co_filename).parent)
    setattr(numba.core.config, "CACHE_DIR", folder)  # noqa: B010  (type checkers do not know it)
    loop = numba.njit(**options)(function)
    with suppress(RuntimeError):  # no folder for the cache
        setattr(loop, "_cache", _Cache(function))  # noqa: B010  (type checkers do not know it)
    return cast("Callable[P, R]", loop)


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
