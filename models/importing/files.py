"""Foreign files: their tensors are read without running any code in them.

Safetensors files hold numbers only. Pickles (`.pt`, `.pth`, `.ckpt`, `.bin`) go through
`torch.load(weights_only=True)`, which accepts only tensors and plain containers. Pickles in a zip archive are mapped
into memory, not read.
"""

import mmap
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.messages import first_line, printable
from models.regular import open_regular, opened_path

_DEEPEST = 32  # the most levels of nested containers


class ForeignError(CheckpointError):
    """A file cannot be imported; the message gives the file, the key, the content found and the remedy."""


ForeignTensor = tuple[str, Tensor]
"""The keys of the containers around the state dict of a tensor, joined by dots; and the tensor."""


def read_tensors(path: Path) -> dict[str, ForeignTensor]:
    """Read all tensors of a file by their full key: the keys of nested containers joined by dots.

    Raises:
        ForeignError: the file is missing or damaged, holds no tensors, or could be read only by running code.
    """
    with opened(path) as stream:
        content = (_safetensors if path.suffix.lower() == ".safetensors" else _pickle)(path, stream)
    tensors = dict(_walk(content, (), 0, set()))
    if not tensors:
        kind = type(content).__name__
        raise ForeignError(f"{path}: holds no tensors, only a {kind}; save model.state_dict() into it")
    return tensors


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a foreign file.

    Raises:
        ForeignError: it is missing, not a regular file, or cannot be read, even within the block.
    """
    try:
        with open_regular(path) as stream:
            yield stream
    except FileNotFoundError:
        raise ForeignError(f"{path}: is missing; name a .safetensors, .pt, .pth, .ckpt, .bin or .pt2 file") from None
    except OSError as error:
        raise ForeignError(f"{path}: cannot be read: {error.strerror or error}") from None


def _safetensors(path: Path, stream: BufferedReader) -> Mapping[str, Tensor]:
    try:
        return safetensors.torch.load_file(opened_path(stream))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignError(f"{path}: is not a safetensors file: {first_line(error)}") from None


def _pickle(path: Path, stream: BufferedReader) -> Any:
    try:
        mapped = zipfile.is_zipfile(stream)
        _check(path, stream, mapped)
        with warnings.catch_warnings():  # about pickle protocols; unreadable files raise below
            warnings.simplefilter("ignore")
            return torch.load(opened_path(stream), map_location="cpu", weights_only=True, mmap=mapped or None)
    except (ForeignError, OSError):
        raise
    except pickle.UnpicklingError as error:
        what = re.search(r"GLOBAL (\S+)", str(error))
        raise _refused(path, f"it would run {printable(what.group(1))}" if what else _MORE) from None
    except (RuntimeError, zipfile.BadZipFile) as error:
        fault = first_line(error)
    except Exception as error:  # a damaged pickle can raise anything
        fault = type(error).__name__  # its text may quote the file
    raise ForeignError(f"{path}: is not a file written by torch.save: {fault}")


_MORE = "it holds more than tensors and plain containers"


def _refused(path: Path, why: str) -> ForeignError:
    return ForeignError(
        f"{path}: is a pickle and was refused; none of its code was run: {why}; "
        "save model.state_dict() alone, best as safetensors"
    )


def _check(path: Path, stream: BufferedReader, archive: bool) -> None:
    """Refuse what takes far more memory than the file has bytes."""
    size = os.fstat(stream.fileno()).st_size
    if archive:
        with zipfile.ZipFile(stream) as members_of:
            entries = members_of.infolist()
        if any(entry.filename.endswith("/models/model.json") for entry in entries):
            raise ForeignError(f"{path}: is an exported program; import it with --program")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ForeignError(f"{path}: has compressed members, which torch.save never writes")
        if (members := sum(entry.file_size for entry in entries)) > size:
            raise ForeignError(f"{path}: claims {members} bytes of members, but has {size} bytes")
    if size:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"\nbytearray\n") >= 0:  # torch calls it with any size
                raise _refused(path, "it would run builtins.bytearray")


def _walk(value: Any, path: tuple[str, ...], depth: int, seen: set[int]) -> Iterator[tuple[str, ForeignTensor]]:
    """Walk through nested containers, skipping everything that is neither a container nor a tensor.

    A container found in several places, or inside itself, is visited once: containers that share parts can have far too
    many paths to visit.
    """
    if isinstance(value, Tensor):
        yield "", ("", value)
    if depth > _DEEPEST or id(value) in seen or not isinstance(value, Mapping | list | tuple):
        return
    seen.add(id(value))
    group = ".".join(path)
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(item, Tensor):
            yield ".".join((*path, str(key))), (group, item)
        else:
            yield from _walk(item, (*path, str(key)), depth + 1, seen)
