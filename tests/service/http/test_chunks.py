"""Bodies in chunks: the same data whatever the pieces, and refusals within bounds."""

import random
import re

import pytest

from service.http.chunks import Chunks


def _data(chunks: bytes) -> bytes:
    """Decode chunks without extensions, by regular expression."""
    data = b""
    while size := re.match(rb"([0-9a-f]+)\r\n", chunks):
        end = size.end() + int(size[1], 16)
        data, chunks = data + chunks[size.end() : end], chunks[end + 2 :]
    assert chunks == b""
    return data


@pytest.mark.parametrize("seed", range(5))
def test_the_data_does_not_depend_on_the_pieces(seed: int) -> None:
    chance = random.Random(seed)
    parts = [chance.randbytes(chance.choice((1, 2, 17, 300))) for _ in range(20)]
    ends = (b"", b";a", b' ;a="b c"')
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(part), chance.choice(ends), part) for part in parts)
    body += b"000\r\nX-Sum: 1\r\n\r\n"
    rest = b"GET / HTTP/1.1\r\n"
    for step in (1, 2, 7, 100, len(body) + len(rest)):
        chunks, unread, passed = Chunks(100), bytearray(), b""
        for place in range(0, len(body) + len(rest), step):
            unread += (body + rest)[place : place + step]
            if not chunks.complete:
                passed += chunks.take(unread)
        assert chunks.complete
        assert unread == rest
        assert _data(passed) == b"".join(parts)


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x5\r\n",
        b"+5\r\n",
        b" 5\r\n",
        b"5\n",
        b"5 5\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"0\r\nX: 1\n",
    ],
)
def test_what_is_no_chunk(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        Chunks(100).take(bytearray(body))


@pytest.mark.parametrize(
    "body", [b"5;" + b"a" * 101, b"0\r\n" + b"X: 1\r\n" * 30, b"1\r\n \r\n0\r\n" + b"X: 1\r\n" * 30]
)
def test_what_surrounds_the_data_is_bounded(body: bytes) -> None:
    with pytest.raises(OverflowError):
        Chunks(100).take(bytearray(body))


def test_small_chunks_are_within_the_bound() -> None:
    chunks, body = Chunks(100), bytearray(b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n")
    assert _data(chunks.take(body)) == b"a" * 10_000
