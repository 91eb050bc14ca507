"""The link between the engine's process and an HTTP worker: messages in both directions over a pair of sockets.

A message is a JSON object, its fields, and any number of arrays:

    bytes of the JSON (u32), bytes of the arrays (u32), JSON, arrays in C order

The field `arrays` lists the dtype and shape of each. Nothing in a message is executable. Messages that are sent in one
turn of the event loop are written together, and arrive in order.
"""

import asyncio
import math
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

Fields = dict[str, Any]
Arrays = Sequence[NDArray[Any]]

_HEAD = struct.Struct("<II")


class Link(asyncio.Protocol):
    """One end of a link; used on its event loop.

    Args:
        received: called with the fields and arrays of each message. The arrays are read-only.
        lost: called once the other end is closed.
    """

    def __init__(self, received: Callable[[Fields, Arrays], None], lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._unread = bytearray()

    def send(self, fields: Fields, arrays: Arrays = ()) -> None:
        """Send a message; dropped if the link is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        if arrays:
            fields = {**fields, "arrays": [(array.dtype.str, array.shape) for array in arrays]}
        head, data = orjson.dumps(fields), [array.tobytes() for array in arrays]
        if not self._parts:
            self._loop.call_soon(self._write)
        self._parts += (_HEAD.pack(len(head), sum(map(len, data))), head, *data)

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        if self._transport is not None:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Close the link once what was sent is written."""
        if self._transport is not None:
            self._write()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Take all complete messages."""
        unread, place = self._unread, 0
        unread += data
        while len(unread) - place >= _HEAD.size:
            head, size = _HEAD.unpack_from(unread, place)
            begin = place + _HEAD.size
            if len(unread) < begin + head + size:
                break
            place = begin + head + size
            message = bytes(memoryview(unread)[begin:place])
            fields = orjson.loads(message[:head])
            self._received(fields, _arrays(fields.pop("arrays", ()), message, head))
        del unread[:place]


def write_message(end: socket.socket, fields: Fields) -> None:
    """Write a message without arrays, waiting until it is written."""
    head = orjson.dumps(fields)
    end.sendall(_HEAD.pack(len(head), 0) + head)


def read_message(end: socket.socket) -> Fields | None:
    """Read a message without arrays, waiting for it; None if the other end is closed."""
    head = _read(end, _HEAD.size)
    return orjson.loads(_read(end, _HEAD.unpack(head)[0])) if head else None


def _read(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def _arrays(described: Sequence[tuple[str, Sequence[int]]], message: bytes, place: int) -> list[NDArray[Any]]:
    arrays: list[NDArray[Any]] = []
    for name, shape in described:
        dtype = np.dtype(name)
        array = np.frombuffer(message, dtype, math.prod(shape), place).reshape(shape)
        place += array.nbytes
        arrays.append(array)
    return arrays
