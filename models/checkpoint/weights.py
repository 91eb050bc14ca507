"""The weights file, read without trusting it: its hash, then its header, and only then its numbers."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.checkpoint.card import CARD_FILE, CheckpointError, UnreadableCheckpoint
from models.messages import first_line, printable
from models.regular import NotRegular, open_regular

_STORED = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
_SLACK = 64 << 20
_HEADER, _HEADER_PER_TENSOR = 1 << 20, 1 << 10  # the most bytes of a header: a base, and more for each tensor
_SHOWN = 5
_COMPARED = 500  # the most names that are searched for the nearest
_LONGEST = 200  # characters; longer names are not compared
_STORED |= {"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


def read_weights(file: Path, sha256: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file after its hash and header have been checked.

    Args:
        file: the file.
        sha256: the hash that it must have, in hexadecimal.
        expected: every key, with a tensor of the dtype and shape that it must have (a meta tensor is enough).

    Raises:
        CheckpointError: the file is missing, damaged, or has tensors other than those expected; an UnreadableCheckpoint
            if reading fails or there is not enough memory.
    """
    try:
        with open_regular(file) as stream:
            _refuse_larger(stream, expected)
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256:
                raise CheckpointError(
                    f"{file}: is damaged or does not belong to its card: SHA-256 found {found}, "
                    f"weights_sha256 in {CARD_FILE} is {sha256}"
                )
            problems = differences(_header(stream, len(expected)), expected)
            if problems is not None:
                raise CheckpointError(f"{file}: {problems}")
            stream.seek(0)
            return safetensors.torch.load(stream.read())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{file}: is missing") from None
    except NotRegular as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise UnreadableCheckpoint(f"{file}: cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadableCheckpoint(f"{file}: there is not enough memory to read it") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not a safetensors file: {first_line(error)}") from None


def _refuse_larger(stream: BufferedReader, expected: Mapping[str, Tensor]) -> None:
    """Refuse a file that is far larger than its tensors before all of it is hashed.

    Up to twice their size is accepted, so that tensors of another dtype or shape are reported by name.
    """
    size, needed = os.fstat(stream.fileno()).st_size, sum(tensor.nbytes for tensor in expected.values())
    if size > 2 * needed + _SLACK:
        raise ValueError(f"it has {size} bytes, but the tensors of this architecture take {needed}")


def _header(stream: BufferedReader, tensors: int) -> dict[str, tuple[str, list[int]]]:
    """Read the dtype and shape of each tensor from the header: its length in 8 bytes, then JSON."""
    size = stream.seek(0, 2)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > size - 8:
        raise ValueError(f"its header claims {length} bytes, but the file has {size}")
    limit = _HEADER + tensors * _HEADER_PER_TENSOR
    if length > limit:
        raise ValueError(f"its header has {length} bytes; the limit for the {tensors} tensors it must have is {limit}")
    header = json.loads(stream.read(length))
    return {k: (v["dtype"], v["shape"]) for k, v in header.items() if k != "__metadata__"}


def differences(
    found: Mapping[str, tuple[str, list[int]]],
    expected: Mapping[str, Tensor],
    cutoff: float = 0.8,
    suggestion: str = "did you mean {}?",
) -> str | None:
    """Say how a file differs from the architecture, for the first few keys that differ; None if it does not.

    Args:
        found: the dtype of each key of the file, as safetensors names it or empty if any is accepted, and its shape.
        expected: every key, with a tensor of the dtype and shape that it must have.
        cutoff: how similar the nearest name must be to be suggested, from 0 to 1.
        suggestion: the text of a suggestion, with {} for the name.
    """
    missing, surplus = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    problems = [f"key {key}: is missing{nearest(key, surplus, cutoff, suggestion)}" for key in missing[:_SHOWN]]
    problems += [
        f"key {printable(key)}: is unexpected{nearest(key, missing, cutoff, suggestion)}" for key in surplus[:_SHOWN]
    ]
    other = [line for key in sorted(found.keys() & expected.keys()) for line in _other(key, found[key], expected[key])]
    count = len(missing) + len(surplus) + len(other)
    if not count:
        return None
    more = f" (and {count - _SHOWN} more)" if count > _SHOWN else ""
    return "; ".join([*problems, *other][:_SHOWN]) + more


def _other(key: str, found: tuple[str, list[int]], expected: Tensor) -> Iterator[str]:
    stored, shape = found
    dtype = str(expected.dtype).removeprefix("torch.")
    if stored and _STORED.get(stored, stored) != dtype:
        yield f"key {key}: found {printable(_STORED.get(stored, stored))}, expected {dtype}"
    if shape != list(expected.shape):
        yield f"key {key}: found shape {printable(str(shape))}, expected {list(expected.shape)}"


def nearest(key: str, others: Sequence[str], cutoff: float, suggestion: str) -> str:
    """Return the name most like a key as a suggestion in parentheses, or nothing; very long names are skipped."""
    if len(key) > _LONGEST:
        return ""
    compared = [other for other in others[:_COMPARED] if len(other) <= _LONGEST]
    match = get_close_matches(key, compared, n=1, cutoff=cutoff)
    return f" ({suggestion.format(match[0])})" if match else ""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; torch has no exception type for that on the CPU."""
    message = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in message or "t allocate" in message
    )
