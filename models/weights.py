"""Reading a weights file without trusting it: hash, then header, and only then the numbers."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.card import CARD_FILE, CheckpointError, UnreadableCheckpoint

_STORED = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
_STORED |= {"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


def read_weights(file: Path, sha256: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file after its hash and header have been checked.

    Args:
        file: the file.
        sha256: the hash it must have, in hexadecimal.
        expected: every key with a tensor of the type and shape it must have; tensors on the meta device do.

    Raises:
        CheckpointError: the file is missing, damaged, or holds other tensors than expected; an UnreadableCheckpoint
            where the disk refuses or memory does not suffice.
    """
    try:
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing")
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256:
                raise CheckpointError(
                    f"{file}: is damaged or not the file of its card: SHA-256 found {found}, "
                    f"weights_sha256 in {CARD_FILE} is {sha256}"
                )
            problems = list(_differences(_header(stream), expected))
            if problems:
                more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
                raise CheckpointError(f"{file}: {'; '.join(problems[:5])}{more}")
            stream.seek(0)
            return safetensors.torch.load(stream.read())
    except OSError as error:
        raise UnreadableCheckpoint(f"{file}: cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadableCheckpoint(f"{file}: memory does not suffice to read it") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: is no safetensors file: {first_line(error)}") from None


def _header(stream: BinaryIO) -> dict[str, tuple[str, list[int]]]:
    """Read each tensor's type and shape from the header: 8 bytes of its length, then JSON."""
    size = stream.seek(0, 2)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > size - 8:
        raise ValueError(f"its header claims {length} bytes, the file has {size}")
    header = json.loads(stream.read(length))
    return {k: (v["dtype"], v["shape"]) for k, v in header.items() if k != "__metadata__"}


def _differences(found: dict[str, tuple[str, list[int]]], expected: Mapping[str, Tensor]) -> Iterator[str]:
    """Say for each key how the file differs from the architecture."""
    for key in sorted(expected.keys() - found.keys()):
        yield f"key {key}: is missing{_nearest(key, found.keys() - expected.keys())}"
    for key in sorted(found.keys() - expected.keys()):
        yield f"key {key}: is surplus{_nearest(key, expected.keys() - found.keys())}"
    for key in sorted(found.keys() & expected.keys()):
        stored, shape = found[key]
        dtype = str(expected[key].dtype).removeprefix("torch.")
        if _STORED.get(stored, stored) != dtype:
            yield f"key {key}: found {_STORED.get(stored, stored)}, expected {dtype}"
        if shape != list(expected[key].shape):
            yield f"key {key}: found shape {shape}, expected {list(expected[key].shape)}"


def _nearest(key: str, others: set[str]) -> str:
    match = get_close_matches(key, sorted(others), n=1, cutoff=0.8)
    return f" (did you mean {match[0]}?)" if match else ""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice; torch has no type of its own for that of the CPU."""
    said = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in said or "t allocate" in said


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
