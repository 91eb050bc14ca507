"""Links: messages arrive whole and in order, however they are cut, and a slow reader holds no writer up."""

import asyncio
import socket
import threading
from typing import Any

import numpy as np
import pytest

from service.workers.link import Arrays, Channel, Fields, Link, encoded, read_message, write_message

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


MESSAGES: list[tuple[Fields, list[np.ndarray]]] = [
    ({"kind": "plain", "text": "é\n", "number": 0.1}, []),
    ({"kind": "arrays"}, [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False]), np.zeros((0, 3))]),
    ({"kind": "strided"}, [np.arange(20, dtype=np.int64).reshape(4, 5)[::2, ::-1], np.float64(0.25) * np.ones(())]),
    ({"kind": "last"}, [np.frombuffer(b"body", np.uint8)]),
]


class Received(list[tuple[Fields, Arrays]]):
    """The messages that one end has received."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()

    def link(self) -> Link:
        return Link(lambda fields, arrays: self.append((fields, arrays)), self.lost.set)


async def ends(received: Received) -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair()
    link = received.link()
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    return link, theirs


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def same(found: list[tuple[Fields, Arrays]], wanted: list[tuple[Fields, list[np.ndarray]]]) -> bool:
    return len(found) == len(wanted) and all(
        fields == sent
        and len(arrays) == len(given)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in zip(arrays, given, strict=True)
        )
        for (fields, arrays), (sent, given) in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_messages_cut_anywhere_arrive_whole(piece: int) -> None:
    received = Received()
    _, end = await ends(received)
    data = b"".join(part for fields, arrays in MESSAGES for part in encoded(fields, arrays))
    for start in range(0, len(data), piece):
        await asyncio.get_running_loop().sock_sendall(_waiting(end), data[start : start + piece])
        await asyncio.sleep(0)
    await until(lambda: len(received) == len(MESSAGES))
    assert same(received, MESSAGES)
    end.close()
    await asyncio.wait_for(received.lost.wait(), 60)


def _waiting(end: socket.socket) -> socket.socket:
    end.setblocking(False)
    return end


async def test_two_ends_talk_and_sending_to_a_lost_one_does_nothing() -> None:
    here, there = Received(), Received()
    one, end = await ends(here)
    other = there.link()
    await asyncio.get_running_loop().create_unix_connection(lambda: other, sock=end)
    for fields, arrays in MESSAGES:
        one.send(fields, arrays)
        other.send(fields, arrays)
    await until(lambda: len(here) == len(there) == len(MESSAGES))
    assert same(here, MESSAGES)
    assert same(there, MESSAGES)
    one._transport.close()  # type: ignore[union-attr]  # pyright: ignore
    await asyncio.wait_for(there.lost.wait(), 60)
    one.send({"kind": "dropped"})
    other.send({"kind": "dropped"})


async def test_a_channel_never_waits_for_its_reader_and_loses_nothing() -> None:
    ours, theirs = socket.socketpair()
    heard: list[Fields] = []
    channel = Channel(ours, lambda fields, arrays: heard.append(fields), asyncio.get_running_loop())
    count, block = 60, np.arange(100_000, dtype=np.int64)
    for k in range(count):  # far more than the socket holds, and nobody reads yet
        channel.send(encoded({"kind": "block", "k": k}, [block]))
    received = Received()
    link = received.link()
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=theirs)
    await until(lambda: len(received) == count)
    assert [fields["k"] for fields, _ in received] == list(range(count))
    assert all((arrays[0] == block).all() for _, arrays in received)
    channel.send(encoded({"kind": "after"}))  # directly again
    await until(lambda: len(received) == count + 1)
    link.send({"kind": "answer"})
    await until(lambda: heard == [{"kind": "answer"}])
    channel.close()
    channel.send(encoded({"kind": "dropped"}))
    await asyncio.wait_for(received.lost.wait(), 60)


async def test_a_channel_receives_in_its_own_thread_and_closes_when_that_fails() -> None:
    ours, theirs = socket.socketpair()
    threads: list[str] = []

    def receive(fields: Fields, arrays: Arrays) -> None:
        threads.append(threading.current_thread().name)
        if fields["kind"] == "bad":
            raise RuntimeError("a fault")

    channel = Channel(ours, receive, asyncio.get_running_loop())
    theirs.sendall(b"".join([*encoded({"kind": "good"}), *encoded({"kind": "bad"})]))
    assert await asyncio.to_thread(theirs.recv, 1) == b""  # the other end notices
    assert threads == ["pathline-jobs", "pathline-jobs"]
    channel.close()
    channel.close()
    theirs.close()


def test_a_first_message_is_read_before_there_is_an_event_loop() -> None:
    ours, theirs = socket.socketpair()
    write_message(ours, {"settings": {"port": 1}})
    assert read_message(theirs) == {"settings": {"port": 1}}
    ours.close()
    assert read_message(theirs) is None
    theirs.close()
