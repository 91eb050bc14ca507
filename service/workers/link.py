"""Links between the engine's process and an HTTP worker: messages in both directions over pairs of sockets.

A message is a JSON object, its fields, and any number of arrays:

    bytes of the JSON (u32), bytes of the arrays (u32), JSON, arrays in C order

The field `arrays` lists the dtype and shape of each. Nothing in a message is executable.

A worker has two links: one for jobs and their outcomes, which a `Channel` serves in the engine's process without its
event loop, and one for everything else.
"""

import asyncio
import contextlib
import logging
import math
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

Fields = dict[str, Any]
Arrays = Sequence[NDArray[Any]]
Received = Callable[[Fields, Arrays], None]

_HEAD = struct.Struct("<II")
_PIECE = 1 << 18

_log = logging.getLogger("pathline")


def encoded(fields: Fields, arrays: Arrays = ()) -> list[bytes]:
    """Return the parts of a message."""
    if arrays:
        fields = {**fields, "arrays": [(array.dtype.str, array.shape) for array in arrays]}
    head, data = orjson.dumps(fields), [array.tobytes() for array in arrays]
    return [_HEAD.pack(len(head), sum(map(len, data))), head, *data]


class _Decoder:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def messages(self, data: bytes) -> Iterator[tuple[Fields, Arrays]]:
        """Yield the messages that these bytes complete; the arrays are read-only."""
        unread, place = self._unread, 0
        unread += data
        while len(unread) - place >= _HEAD.size:
            head, size = _HEAD.unpack_from(unread, place)
            begin, end = place + _HEAD.size, place + _HEAD.size + head + size
            if len(unread) < end:
                break
            message, place = bytes(memoryview(unread)[begin:end]), end
            fields = orjson.loads(memoryview(message)[:head])
            yield fields, _arrays(fields.pop("arrays", ()), message, head)
        del unread[:place]


class Link(asyncio.Protocol):
    """One end of a link, on an event loop. What is sent in one turn of the loop is written at once.

    Args:
        received: called with each message.
        lost: called once the other end is closed.
    """

    def __init__(self, received: Received, lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._decoder = _Decoder()

    def send(self, fields: Fields, arrays: Arrays = ()) -> None:
        """Send a message; dropped if the link is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._parts:
            self._loop.call_soon(self._write)
        self._parts += encoded(fields, arrays)

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        if self._transport is not None:
            self._transport.write(b"".join(parts))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Take all complete messages."""
        for fields, arrays in self._decoder.messages(data):
            self._received(fields, arrays)


class Channel:
    """One end of a link that any thread writes and a thread of its own reads.

    An event loop would cost two more changes of threads for each job, and each waits until the engine's thread lets
    the interpreter go.

    Args:
        end: the socket.
        received: called with each message, in the channel's thread.
        loop: writes what a slow reader leaves behind.
    """

    def __init__(self, end: socket.socket, received: Received, loop: asyncio.AbstractEventLoop) -> None:
        self._end, self._received, self._loop = end, received, loop
        self._lock = threading.Lock()
        self._left = bytearray()  # to be written by the loop
        self._decoder = _Decoder()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="pathline-jobs", daemon=True)
        self._thread.start()

    def send(self, parts: Sequence[bytes]) -> None:
        """Send encoded messages, without waiting for the reader; dropped if the link is lost."""
        data = b"".join(parts)
        with self._lock:
            if self._closed:
                return
            if self._left:
                self._left += data
                return
            sent = self._written(data)
            if sent == len(data):
                return
            self._left += memoryview(data)[sent:]
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._loop.add_writer, self._end, self._write_left)

    def _written(self, data: bytes | bytearray) -> int:
        """Write as much as the socket takes; return the number of bytes, all of them if nobody reads any more."""
        try:
            return self._end.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _write_left(self) -> None:
        with self._lock:
            if not self._closed:
                del self._left[: self._written(self._left)]
            if self._closed or not self._left:
                self._loop.remove_writer(self._end)

    def _read(self) -> None:
        readable = select.poll()  # as recv would not wait once the loop has written to the socket
        readable.register(self._end, select.POLLIN)
        try:
            while readable.poll() and (data := self._end.recv(_PIECE)):
                for fields, arrays in self._decoder.messages(data):
                    self._received(fields, arrays)
        except OSError:
            pass
        except Exception:
            _log.exception("the link to an HTTP worker has failed")
        with contextlib.suppress(OSError):  # the worker notices, and ends
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the link, on the loop; its thread ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._left:
                self._loop.remove_writer(self._end)
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._end.close()


def write_message(end: socket.socket, fields: Fields) -> None:
    """Write a message without arrays, waiting until it is written."""
    end.sendall(b"".join(encoded(fields)))


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
