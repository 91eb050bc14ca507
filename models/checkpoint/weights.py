"""The weights file, safetensors: written, and read without trusting it, its hash first and its numbers last.

Numbers go straight from the file into their tensors and back, so neither takes the memory of a second copy.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from models.checkpoint.card import CARD_FILE, CheckpointError, UnreadableCheckpoint, opened_file
from models.compute import HALVES
from models.decoder import Decoder
from models.messages import first_line, printable
from models.network import Network
from models.prelude import Prelude

_STORED = {
    "I64": "int64", "F64": "float64", "F32": "float32", "I32": "int32", "BF16": "bfloat16", "F16": "float16",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The dtypes by their names in the file, in the order of its tensors."""
_SLACK = 64 << 20
_HEADER, _HEADER_PER_TENSOR = 1 << 20, 1 << 10  # the most bytes of a header: a base, and more for each tensor
_SHOWN = 5
_COMPARED = 500  # the most names that are searched for the nearest
_LONGEST = 200  # characters; longer names are not compared
_CHUNK = 1 << 20  # numbers checked at once
_PIECE = 16 << 20  # bytes read at once


class Modules(nn.Module):
    """The modules with tensors in the weights file, under `velocity.`, `decoder.`, `prelude.` and `nulls.`."""

    def __init__(
        self, velocity: Network, decoder: Decoder, prelude: Prelude | None, nulls: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.velocity, self.decoder, self.prelude, self.nulls = velocity, decoder, prelude, nn.Module()
        self.nulls._buffers.update(nulls)  # `register_buffer` refuses names that modules have, such as `type`

    def stored(self, dtype: torch.dtype, compute: str | None) -> dict[str, Tensor]:
        """Return all tensors by their keys in the file, in the dtypes that they have there.

        They are copied only to change that, and then as the file has them, so that saving copies none again.

        Args:
            dtype: dtype of the states.
            compute: half precision of the network's parameters; None for `dtype`.
        """
        parameters, tensors = {key for key, _ in self.named_parameters()}, dict[str, Tensor]()
        program = ("velocity.",) if self.velocity.holds_program else ()
        for key, tensor in self.state_dict().items():
            kind = torch.float64 if key.startswith("decoder.") and self.decoder.config.dtype else dtype
            if not tensor.is_floating_point() or key.startswith(("nulls.", "decoder.program.", "prelude.", *program)):
                kind = tensor.dtype  # their own
            elif key.startswith("velocity.") and compute is not None:
                kind = HALVES[compute] if key in parameters else tensor.dtype
            tensors[key] = tensor.detach().to(kind, memory_format=torch.contiguous_format)
        return tensors

    def check_finite(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise a CheckpointError for a tensor with numbers that are not finite; masks of programs have infinities."""
        for key, tensor in tensors.items():
            masks = self.velocity.holds_program if key.startswith("velocity.") else ".program." in key
            if not finite(tensor, masks):
                raise CheckpointError(f"key {key}: holds numbers that are not finite")


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
        with opened_file(file) as stream:
            size, needed = os.fstat(stream.fileno()).st_size, sum(tensor.nbytes for tensor in expected.values())
            # Before all of it is hashed; up to twice the size, as tensors of another dtype or shape are named below.
            if size > 2 * needed + _SLACK:
                raise ValueError(f"it has {size} bytes, but the tensors of this architecture take {needed}")
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != sha256:
                raise CheckpointError(
                    f"{file}: is damaged or does not belong to its card: SHA-256 found {digest}, "
                    f"weights_sha256 in {CARD_FILE} is {sha256}"
                )
            header = _header(stream, len(expected))
            problems = differences({key: entry[:2] for key, entry in header.items()}, expected)
            if problems is not None:
                raise CheckpointError(f"{file}: {problems}")
            return _numbers(stream, header, expected)
    except MemoryError:
        raise UnreadableCheckpoint(f"{file}: there is not enough memory to read it") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not a safetensors file: {first_line(error)}") from None


def _header(stream: BufferedReader, tensors: int) -> dict[str, tuple[str, list[int], int, int]]:
    """Read dtype, shape, begin and end of each tensor from the header: its length in 8 bytes, then JSON."""
    size = stream.seek(0, 2)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > size - 8:
        raise ValueError(f"its header claims {length} bytes, but the file has {size}")
    limit = _HEADER + tensors * _HEADER_PER_TENSOR
    if length > limit:
        raise ValueError(f"its header has {length} bytes; the limit for the {tensors} tensors it must have is {limit}")
    header = json.loads(stream.read(length))
    entries = dict[str, tuple[str, list[int], int, int]]()
    for key, entry in header.items():
        if key != "__metadata__":
            begin, end = map(int, entry["data_offsets"])
            entries[key] = entry["dtype"], entry["shape"], begin, end
    return entries


def _numbers(
    stream: BufferedReader, header: Mapping[str, tuple[str, list[int], int, int]], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read the tensors behind the header, where the stream is; they must fill the rest of the file without gaps."""
    base, end, tensors = stream.tell(), 0, dict[str, Tensor]()
    for key, (_, _, begin, after) in sorted(header.items(), key=lambda item: item[1][2:]):
        if begin != end or after - begin != expected[key].nbytes:
            raise ValueError(
                f"key {printable(key)} is at bytes {begin} to {after}, expected {expected[key].nbytes} at {end}"
            )
        tensors[key], end = torch.empty(expected[key].shape, dtype=expected[key].dtype, device="cpu"), after
        fill(tensors[key], stream)
    if base + end != os.fstat(stream.fileno()).st_size:
        raise ValueError(f"its tensors have {end} bytes, and there are more or fewer")
    return {key: tensors[key] for key in header}


def fill(tensor: Tensor, stream: IO[bytes]) -> None:
    """Read the bytes of a contiguous tensor from a stream, in place; raise a ValueError if there are too few."""
    if not tensor.numel():
        return
    content, done = tensor.reshape(-1).view(torch.uint8).numpy().data, 0
    while done < len(content):
        if not (count := stream.readinto(content[done : done + _PIECE])):  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError("it ends within a tensor")
        done += count


def file_of(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the content of a weights file: its header, then the memory of each tensor, which is contiguous on the CPU.

    The bytes are those of `safetensors.torch.save`.
    """
    names = {dtype: name for name, dtype in _STORED.items()}
    kinds, header, end = list(_STORED), dict[str, Any](), 0
    stored = {key: names[str(tensor.dtype).removeprefix("torch.")] for key, tensor in tensors.items()}
    order = sorted(tensors, key=lambda key: (kinds.index(stored[key]), key))
    for key in order:
        begin, end = end, end + tensors[key].nbytes
        header[key] = {"dtype": stored[key], "shape": list(tensors[key].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for key in order:
        if tensors[key].numel():
            yield tensors[key].reshape(-1).view(torch.uint8).numpy().data


def finite(tensor: Tensor, infinities: bool = False) -> bool:
    """Whether a tensor holds numbers only, part by part; with `infinities`, these are allowed, as in masks."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if not tensor.is_floating_point():
        return True
    parts = tensor.detach().reshape(-1).split(_CHUNK)
    return not any(bool(part.isnan().any()) if infinities else not bool(part.isfinite().all()) for part in parts)


def differences(
    stored: Mapping[str, tuple[str, list[int]]],
    expected: Mapping[str, Tensor],
    cutoff: float = 0.8,
    suggestion: str = "did you mean {}?",
) -> str | None:
    """Say how a file differs from the architecture, for the first few keys that differ; None if it does not.

    Args:
        stored: the dtype of each key of the file, as safetensors names it or empty if any is accepted, and its shape.
        expected: every key, with a tensor of the dtype and shape that it must have.
        cutoff: how similar the nearest name must be to be suggested, from 0 to 1.
        suggestion: the text of a suggestion, with {} for the name.
    """
    missing, surplus = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    problems = [f"key {key}: is missing{nearest(key, surplus, cutoff, suggestion)}" for key in missing[:_SHOWN]]
    problems += [
        f"key {printable(key)}: is unexpected{nearest(key, missing, cutoff, suggestion)}" for key in surplus[:_SHOWN]
    ]
    other = [
        line for key in sorted(stored.keys() & expected.keys()) for line in _other(key, stored[key], expected[key])
    ]
    count = len(missing) + len(surplus) + len(other)
    if not count:
        return None
    more = f" (and {count - _SHOWN} more)" if count > _SHOWN else ""
    return "; ".join([*problems, *other][:_SHOWN]) + more


def _other(key: str, entry: tuple[str, list[int]], expected: Tensor) -> Iterator[str]:
    stored, shape = entry
    dtype = str(expected.dtype).removeprefix("torch.")
    if stored and _STORED.get(stored, stored) != dtype:
        yield f"key {key}: found {printable(_STORED.get(stored, stored))}, expected {dtype}"
    if shape != list(expected.shape):
        yield f"key {key}: found shape {printable(str(shape))}, expected {list(expected.shape)}"


def nearest(key: str, names: Sequence[str], cutoff: float, suggestion: str) -> str:
    """Return the name most like a key as a suggestion in parentheses, or nothing; very long names are skipped."""
    if len(key) > _LONGEST:
        return ""
    compared = [other for other in names[:_COMPARED] if len(other) <= _LONGEST]
    match = get_close_matches(key, compared, n=1, cutoff=cutoff)
    return f" ({suggestion.format(printable(match[0]))})" if match else ""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; torch has no exception type for that on the CPU."""
    message = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in message or "t allocate" in message
    )
