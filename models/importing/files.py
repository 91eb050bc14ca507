"""Reading the tensors of a foreign file; nothing in it is run.

Safetensors files hold numbers only. Pickles (`.pt`, `.pth`, `.ckpt`, `.bin`) go through ``torch.load(weights_only=
True)``, which knows tensors and plain containers and refuses everything else. Zip-based ones are mapped, not read.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.weights import first_line
from models.regular import open_regular, opened_path

_DEEPEST = 32  # levels of nested containers


class ForeignError(CheckpointError):
    """A file cannot be imported; the message names the file, the key, what was found and what to do."""


@dataclass(frozen=True)
class Found:
    """A tensor of a foreign file.

    Attributes:
        group: the keys of the containers around its state dict, joined by dots; empty at the top.
        tensor: its numbers.
    """

    group: str
    tensor: Tensor


def read_tensors(path: Path) -> dict[str, Found]:
    """Read all tensors of a file by their full key: the keys of nested containers joined by dots.

    Raises:
        ForeignError: the file is missing, damaged, no tensors are in it, or it would have to run code to be read.
    """
    read = _safetensors if path.suffix.lower() == ".safetensors" else _pickle
    with opened(path) as stream:
        content = read(path, stream)
    found = dict(_walk(content, (), 0, set()))
    if not found:
        kind = type(content).__name__
        raise ForeignError(f"{path}: holds no tensors, only a {kind}; save model.state_dict() into it")
    return found


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a foreign file.

    Raises:
        ForeignError: it is missing, no regular file, or cannot be read, also in the block.
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
    mapped = zipfile.is_zipfile(stream)
    if mapped:
        with zipfile.ZipFile(stream) as archive:
            if any(name.endswith("/models/model.json") for name in archive.namelist()):
                raise ForeignError(f"{path}: is an exported program; import it with --program")
    try:
        with warnings.catch_warnings():  # of pickle protocols: what cannot be read is an error below
            warnings.simplefilter("ignore")
            return torch.load(opened_path(stream), map_location="cpu", weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        what = re.search(r"GLOBAL (\S+)", str(error))
        wants = f"it would run {what.group(1)}" if what else "it holds more than tensors and plain containers"
        raise ForeignError(
            f"{path}: is a pickle that was refused, nothing of it was run: {wants}; "
            "save model.state_dict() alone, best as safetensors"
        ) from None
    except (RuntimeError, zipfile.BadZipFile) as error:
        said = first_line(error)
    except (EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, LookupError) as error:
        said = type(error).__name__  # (its text may quote the file)
    raise ForeignError(f"{path}: is not a file written by torch.save: {said}")


def _walk(value: Any, path: tuple[str, ...], depth: int, seen: set[int]) -> Iterator[tuple[str, Found]]:
    """Go through nested containers; what is neither a container nor a tensor is passed over.

    A container that is in several places, or in itself, is gone through where it is met first: nested ones that share
    their parts would have more places than could ever be visited.
    """
    if isinstance(value, Tensor):
        yield ".".join(path), Found(".".join(path[:-1]) if depth else "", value)
        return
    if depth > _DEEPEST or id(value) in seen:
        return
    if isinstance(value, Mapping | list | tuple):
        seen.add(id(value))
    if isinstance(value, Mapping):
        own = ".".join(path)
        for key, item in value.items():
            if isinstance(item, Tensor):
                yield ".".join((*path, str(key))), Found(own, item)
            else:
                yield from _walk(item, (*path, str(key)), depth + 1, seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, str(index)), depth + 1, seen)
