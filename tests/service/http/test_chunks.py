"""Bodies in chunks: the application gets the same data whatever the pieces, and refusals are within bounds."""

import asyncio
import random
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.http.connections import protocol
from service.http.context import CONNECTION
from service.settings import Settings

pytestmark = pytest.mark.anyio

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nnext"


async def _read(received: bytes, step: int = 1 << 20, answer: tuple[bytes, ...] = ()) -> tuple[list[bytes], bytes]:
    """Receive bytes in pieces; return the bodies that the application gets, and what the client gets.

    Args:
        received: what the client sends.
        step: bytes of a piece.
        answer: what the application answers, in pieces.
    """
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in answer:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})
        scope["state"][CONNECTION].response_ends()

    limited: Any = protocol(Settings(max_header_bytes=1024))
    config = uvicorn.Config(app, interface="asgi3", ws="none", log_config=None)
    config.load()
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
    connection = limited(config, ServerState(), {})
    connection.connection_made(transport)
    for place in range(0, len(received), step):
        connection.data_received(received[place : place + step])
    for _ in range(10):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return bodies, b"".join(call.args[0] for call in transport.write.call_args_list)


@pytest.mark.parametrize("seed", range(5))
async def test_the_data_does_not_depend_on_the_pieces(seed: int) -> None:
    chance = random.Random(seed)
    parts = [chance.randbytes(chance.choice((1, 2, 17, 300))) for _ in range(20)]
    ends = (b"", b";a", b' ;a="b c"')
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(part), chance.choice(ends), part) for part in parts)
    body += b"000\r\nX-Sum: 1\r\n\r\n"
    for step in (1, 2, 7, 100, 1 << 20):
        assert (await _read(HEAD + body + NEXT, step))[0] == [b"".join(parts), b"next"]


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
async def test_what_is_no_chunk(body: bytes) -> None:
    for step in (1, 1 << 20):
        bodies, sent = await _read(HEAD + body, step)
        assert not bodies
        assert sent.startswith(b"HTTP/1.1 400 ")
        assert b"not a valid HTTP/1.1 request" in sent


@pytest.mark.parametrize(
    "body", [b"5;" + b"a" * 1024, b"0\r\n" + b"X: 1\r\n" * 200, b"1\r\n \r\n0\r\n" + b"X: 1\r\n" * 200]
)
async def test_what_surrounds_the_data_is_bounded(body: bytes) -> None:
    for step in (1, 1 << 20):
        bodies, sent = await _read(HEAD + body, step)
        assert not bodies
        assert sent.startswith(b"HTTP/1.1 400 ")
        assert b"PATHLINE_MAX_HEADER_BYTES" in sent


async def test_small_chunks_are_within_the_bound() -> None:
    assert (await _read(HEAD + b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n"))[0] == [b"a" * 10_000]


async def test_an_answer_in_pieces_to_http_1_0_has_no_chunks() -> None:
    received = NEXT.replace(b"HTTP/1.1", b"HTTP/1.0")
    bodies, sent = await _read(received, answer=(b"one", b"", b"2\r\ntwo\r\n", b"three"))
    assert bodies == [b"next"]
    assert sent.endswith(b"\r\n\r\none2\r\ntwo\r\nthree")
    assert b"transfer-encoding" not in sent
