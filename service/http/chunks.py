"""Bodies in chunks (RFC 9112, section 7.1): what surrounds the data is bounded and dropped."""

import re

FRAMING = 16
"""Bytes around the data that are allowed for each byte of it: a chunk of one byte needs 5."""

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;.*)?")


class Chunks:
    """One body, which may arrive in any pieces.

    Args:
        limit: bytes of one line, and of all lines beside `FRAMING` for each byte of data.
        bare: whether `take` returns the data alone.

    Attributes:
        complete: whether its end has arrived.
        claimed_bytes: its least size, by the chunks that have begun.
    """

    def __init__(self, limit: int, bare: bool = False) -> None:
        self._limit, self._bare, self._left = limit, bare, 0
        self._size = self._around = self.claimed_bytes = 0
        self._line = self._size_line
        self.complete = False

    def take(self, unread: bytearray) -> bytes:
        """Remove what can be read from received bytes; return its data, in chunks without extensions and trailers.

        Raises:
            ValueError: these are no chunks.
            OverflowError: there is too much around the data.
        """
        place, passed = 0, bytearray()
        while place < len(unread) and not self.complete:
            if self._left:
                data = unread[place : place + self._left]
                passed += data if self._bare else b"%x\r\n%b\r\n" % (len(data), data)
                place, self._left, self._size = place + len(data), self._left - len(data), self._size + len(data)
                continue
            end = unread.find(b"\n", place) + 1
            if (end or len(unread)) - place > self._limit:
                raise OverflowError
            if not end:
                break
            self._around += end - place
            if self._around > self._limit + FRAMING * self._size:
                raise OverflowError
            line = bytes(unread[place:end])
            if not line.endswith(b"\r\n"):
                raise ValueError
            self._line(line[:-2])
            place = end
        del unread[:place]
        return bytes(passed) + (b"0\r\n\r\n" if self.complete and not self._bare else b"")

    def _size_line(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise ValueError
        self._left = int(size[1], 16)
        self.claimed_bytes = self._size + self._left
        self._line = self._end_of_data if self._left else self._trailer

    def _end_of_data(self, line: bytes) -> None:
        if line:
            raise ValueError
        self._line = self._size_line

    def _trailer(self, line: bytes) -> None:
        self.complete = not line
