"""Bodies in npz: arrays as npz entries, and all other members in one entry of JSON.

    np.savez(file, request=json.dumps({"model": "pictures", "solver": "ab4-8"}), **{"conditions.text": text})

Nothing is unpickled, and no entry is read beyond the size that it claims; `claimed_bytes` bounds the sum of these.
"""

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel

from models.messages import short
from service.errors import Kind, ProblemError, invalid
from service.requests.tensors import places, put

REQUEST = "request"
"""The entry with the JSON members."""

_ZIP = b"PK"
_ENTRY = b"PK\x01\x02"
"""The bytes with which the description of an entry begins."""

_MAX_ENTRIES = 256
_MAX_AXES = 16
_LONGEST_HEADER = 4096
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def is_npz(body: bytes) -> bool:
    """Whether a body is an archive; JSON never begins like one."""
    return body.startswith(_ZIP)


def claimed_bytes(body: bytes, limit: int) -> int:
    """Return the bytes that the entries of an archive claim to take once they are read.

    Raises:
        ProblemError: 400 for a malformed archive, 413 for one that claims more than `limit` bytes or has too many
            entries.
    """
    with _archive(body) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > limit:
        detail = (
            f"the entries of the npz body take {claimed:,} bytes, the limit is {limit:,} (PATHLINE_MAX_BODY_BYTES), "
            "compressed or not; send less at once"
        )
        raise ProblemError(Kind.TOO_LARGE, detail, limit=limit)
    return claimed


def read_npz(body: bytes, model: type[BaseModel]) -> tuple[bytes, dict[str, Any]]:
    """Return the JSON members as text, and the arrays as members of a request of this type.

    Raises:
        ProblemError: 400 for a malformed archive, 422 for an unknown or malformed entry.
    """
    text, content = b"{}", dict[str, Any]()
    with _archive(body) as archive:
        for name, entry in _entries(archive):
            with archive.open(entry) as stream:
                data = stream.read(entry.file_size + 1)
            what = f"the npz entry {short(name)!r}"
            if name == REQUEST:
                text = data if entry.filename.endswith(".json") else _text(_array(name, data))
            elif not put(content, model, name, _array(name, data), what):
                names = ", ".join((REQUEST, *places(model)))
                raise invalid(short(name), f"{what} is unknown; use one of {names}")
    return text, content


@contextmanager
def _archive(body: bytes) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever goes wrong while it is read is the fault of its bytes, and a 400."""
    count = body.count(_ENTRY)
    if count > _MAX_ENTRIES:  # each takes a hundred times its bytes in memory
        detail = f"the npz body has {count} entries, the limit is {_MAX_ENTRIES}"
        raise ProblemError(Kind.TOO_LARGE, detail, limit=_MAX_ENTRIES)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            yield archive
    except ProblemError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy have no exception in common
        raise ProblemError(Kind.MALFORMED, f"the body is not a valid npz archive: {error}") from None


def _entries(archive: zipfile.ZipFile) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """Yield the names and entries of an archive, each name once."""
    seen: set[str] = set()
    for entry in archive.infolist():
        name = REQUEST if entry.filename == f"{REQUEST}.json" else entry.filename.removesuffix(".npy")
        if entry.orig_filename != entry.filename:
            shown = short(entry.orig_filename)
            raise invalid(short(name), f"the npz entry {shown!r} has a character in its name that zip does not allow")
        if entry.compress_type not in _METHODS:
            raise ProblemError(
                Kind.MALFORMED, f"the npz entry {short(name)!r} is compressed by another method than zip's"
            )
        if name in seen:
            raise invalid(short(name), f"the npz entry {short(name)!r} is given twice; give it once")
        seen.add(name)
        yield name, entry


def _array(name: str, data: bytes) -> NDArray[Any]:
    """Read an array in the npy format; one with missing bytes is refused."""
    what = f"the npz entry {short(name)!r}"
    stream = io.BytesIO(data)
    reason = "it does not begin like a file of np.save"
    try:
        version = npy.read_magic(stream)
        reason = f"its header is damaged or longer than {_LONGEST_HEADER:,} bytes"
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
    except Exception:  # texts for NumPy's users, of whatever type
        raise invalid(short(name), f"{what} is not in the npy format: {reason}") from None
    if dtype.hasobject:
        raise invalid(short(name), f"{what} holds Python objects, which are never read")
    no_array = bool(dtype.shape) or not dtype.itemsize or len(shape) > _MAX_AXES
    if no_array or any(type(size) is not int or size < 0 for size in shape):
        raise invalid(
            short(name), f"{what} is {short(str(dtype))} of shape {short(str(list(shape)))}, which is no array"
        )
    content = memoryview(data)[stream.tell() :]
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(content) or math.prod(size or 1 for size in shape) * dtype.itemsize >= 2**63:
        shown = short(str(list(shape)))
        raise invalid(short(name), f"{what} has {len(content):,} bytes; {dtype} of shape {shown} takes {needed:,}")
    flat = np.frombuffer(content, dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _text(array: NDArray[Any]) -> bytes:
    """Return the text of an entry that holds a string or its bytes."""
    if array.dtype.kind == "U" and not array.ndim:
        return str(array[()]).encode()
    if array.dtype.kind == "S" and not array.ndim:
        return bytes(array[()])
    if array.dtype == np.uint8:
        return array.tobytes()
    raise invalid(
        REQUEST, f"the npz entry {REQUEST!r} is {array.dtype} of shape {list(array.shape)}; it must be JSON text"
    )
