"""Reading a weights file without trusting it: hash, then header, and only then the numbers."""

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
from models.regular import NotRegular, open_regular

_STORED = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
_SLACK = 64 << 20
_HEADER, _HEADER_A_TENSOR = 1 << 20, 1 << 10  # bytes of a header: for what it says of the file, and for each tensor
_SHOWN = 5
_COMPARED = 500  # names that are searched for the nearest
_LONGEST = 200  # letters of a name that is searched for, or shown
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
        with open_regular(file) as stream:
            _refuse_larger(stream, expected)
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != sha256:
                raise CheckpointError(
                    f"{file}: is damaged or not the file of its card: SHA-256 found {found}, "
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
    """Refuse a file that is far larger than its tensors, before all of it is hashed.

    Twice their size passes, so that tensors of another type or shape are named.
    """
    size, needed = os.fstat(stream.fileno()).st_size, sum(tensor.nbytes for tensor in expected.values())
    if size > 2 * needed + _SLACK:
        raise ValueError(f"it has {size} bytes, the tensors of this architecture take {needed}")


def _header(stream: BufferedReader, tensors: int) -> dict[str, tuple[str, list[int]]]:
    """Read each tensor's type and shape from the header: 8 bytes of its length, then JSON."""
    size = stream.seek(0, 2)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > size - 8:
        raise ValueError(f"its header claims {length} bytes, the file has {size}")
    most = _HEADER + tensors * _HEADER_A_TENSOR
    if length > most:
        raise ValueError(f"its header has {length} bytes; for the {tensors} tensors of this architecture it is {most}")
    header = json.loads(stream.read(length))
    return {k: (v["dtype"], v["shape"]) for k, v in header.items() if k != "__metadata__"}


def differences(
    found: Mapping[str, tuple[str, list[int]]],
    expected: Mapping[str, Tensor],
    cutoff: float = 0.8,
    suggestion: str = "did you mean {}?",
) -> str | None:
    """Say for the first few keys that differ how a file differs from the architecture; None if it does not.

    Args:
        found: the type, as safetensors calls it or empty where any will do, and the shape of each key of the file.
        expected: every key with a tensor of the type and shape it must have.
        cutoff: how alike a name must be to be named as the nearest, from 0 to 1.
        suggestion: how the nearest name is said.
    """
    missing, surplus = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    said = [f"key {key}: is missing{nearest(key, surplus, cutoff, suggestion)}" for key in missing[:_SHOWN]]
    said += [f"key {shown(key)}: is unexpected{nearest(key, missing, cutoff, suggestion)}" for key in surplus[:_SHOWN]]
    other = [line for key in sorted(found.keys() & expected.keys()) for line in _other(key, found[key], expected[key])]
    count = len(missing) + len(surplus) + len(other)
    if not count:
        return None
    more = f" (and {count - _SHOWN} more)" if count > _SHOWN else ""
    return "; ".join([*said, *other][:_SHOWN]) + more


def _other(key: str, found: tuple[str, list[int]], expected: Tensor) -> Iterator[str]:
    stored, shape = found
    dtype = str(expected.dtype).removeprefix("torch.")
    if stored and _STORED.get(stored, stored) != dtype:
        yield f"key {key}: found {shown(_STORED.get(stored, stored))}, expected {dtype}"
    if shape != list(expected.shape):
        yield f"key {key}: found shape {shown(str(shape))}, expected {list(expected.shape)}"


def nearest(key: str, others: Sequence[str], cutoff: float, said: str) -> str:
    """The name most like a key, said in brackets, or nothing; of very many or very long names not all are looked at."""
    if len(key) > _LONGEST:
        return ""
    compared = [other for other in others[:_COMPARED] if len(other) <= _LONGEST]
    match = get_close_matches(key, compared, n=1, cutoff=cutoff)
    return f" ({said.format(match[0])})" if match else ""


def shown(key: str) -> str:
    """A name on one line of no great length."""
    text = key if key.isprintable() else repr(key)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice; torch has no type of its own for that of the CPU."""
    said = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in said or "t allocate" in said


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
