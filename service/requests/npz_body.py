"""Bodies in npz: arrays as npz entries, and all other members in one entry of JSON.

    np.savez(file, request=json.dumps({"model": "pictures", "solver": "ab4-8"}), **{"conditions.text": text})

Nothing is unpickled, and nothing is allocated for what an entry only claims to hold.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from models.nested import short
from service.errors import Kind, ProblemError, invalid

REQUEST = "request"
"""The entry with the JSON members."""

ARRAYS = ("x0", "samples", "condition", "save_at", "grid", "t_span", "times")
NAMED = ("conditions", "negative")
"""Array members, and members that hold arrays by name."""

_ZIP = b"PK"
_MAX_ENTRIES = 256
_MAX_TIMES = 16
"""Maximum ratio of an archive's claimed size to its bytes; compressed numbers hardly reach it."""

_SPARE = 1 << 20
_LONGEST_HEADER = 4096


def is_npz(body: bytes) -> bool:
    """Whether a body is an archive; JSON never begins like one."""
    return body.startswith(_ZIP)


def read_npz(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the JSON members as text, and the arrays as members of a request.

    Raises:
        ProblemError: 400 for a malformed archive, 413 for one that claims far more than its bytes, 422 for an unknown
            or malformed entry.
    """
    text, content = b"{}", dict[str, Any]()
    with _opened(body) as archive:
        for name, entry in _entries(archive, len(body)):
            data = _data(archive, entry)
            if name == REQUEST:
                text = _json(entry, data)
            else:
                _put(content, name, _array(name, data))
    return text, content


def read_members(body: bytes) -> bytes:
    """Return the JSON members as text, without reading the arrays; errors as in `read_npz`."""
    with _opened(body) as archive:
        found = [entry for name, entry in _entries(archive, len(body)) if name == REQUEST]
        return _json(found[0], _data(archive, found[0])) if found else b"{}"


@contextmanager
def _opened(body: bytes) -> Iterator[zipfile.ZipFile]:
    """Open an archive, and turn the exceptions of reading it into a 400."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ProblemError(Kind.MALFORMED, f"the body is not a valid npz archive: {error}") from None


def _entries(archive: zipfile.ZipFile, size: int) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """Yield the names and entries of an archive of `size` bytes that claims no more than it can hold."""
    entries = archive.infolist()
    claimed, limit = sum(entry.file_size for entry in entries), _MAX_TIMES * size + _SPARE
    if len(entries) > _MAX_ENTRIES or claimed > limit:
        detail = (
            f"the npz body of {size:,} bytes claims {len(entries)} entries and {claimed:,} bytes, over the limit of "
            f"{_MAX_ENTRIES} entries or {limit:,} bytes; send it uncompressed (np.savez)"
        )
        raise ProblemError(Kind.TOO_LARGE, detail, limit=limit)
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename.removesuffix(".npy").removesuffix(".json")
        if name in seen:
            raise invalid(short(name), f"the npz entry {short(name)!r} is given twice; give it once")
        seen.add(name)
        yield name, entry


def _data(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as stream:
        return stream.read(entry.file_size + 1)


def _json(entry: zipfile.ZipInfo, data: bytes) -> bytes:
    return data if entry.filename.endswith(".json") else _text(_array(REQUEST, data))


def _put(content: dict[str, Any], name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "biuf":
        raise invalid(short(name), f"the npz entry {short(name)!r} is {array.dtype}; it must hold numbers or booleans")
    member, _, key = name.partition(".")
    if member in NAMED and key:
        content.setdefault(member, {})[key] = array
    elif name in ARRAYS:
        content[name] = array if name in ("x0", "samples", "condition") else array.astype(np.float64).tolist()
    else:
        known = ", ".join((REQUEST, *ARRAYS, *(f"{each}.NAME" for each in NAMED)))
        raise invalid(short(name), f"the npz entry {short(name)!r} is unknown; use one of {known}")


def _array(name: str, data: bytes) -> NDArray[Any]:
    """Read an array in the npy format; one with missing bytes is refused."""
    stream = io.BytesIO(data)
    reason = "it does not begin like a file of np.save"
    try:
        version = npy.read_magic(stream)
        reason = f"its header is damaged or longer than {_LONGEST_HEADER:,} bytes"
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
    except (ValueError, EOFError, SyntaxError, TypeError, RecursionError, MemoryError):  # texts for NumPy's users
        raise invalid(short(name), f"the npz entry {short(name)!r} is not in the npy format: {reason}") from None
    if dtype.hasobject:
        raise invalid(short(name), f"the npz entry {short(name)!r} holds Python objects, which are never read")
    rest = memoryview(data)[stream.tell() :]
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(rest):
        message = (
            f"the npz entry {short(name)!r} has {len(rest):,} bytes; {dtype} of shape {list(shape)} takes {needed:,}"
        )
        raise invalid(short(name), message)
    flat = np.frombuffer(rest, dtype=dtype)
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
