"""An asynchronous client in more than one event loop: it works, and leaves no socket behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pathline
import pytest
from pathline import AsyncClient, RetryPolicy
from pathline._io import _open

from tests.clients.test_transport import HEAD, answering

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService

ONCE = RetryPolicy(max_attempts=1)


def connections(url: str) -> int:
    """Return how many sockets of this process are connected to a service, according to the system."""
    ours = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{httpx.URL(url).port:04X}"
    return sum(line[2].endswith(port) and f"socket:[{line[9]}]" in ours for line in lines)


async def ask(client: AsyncClient, times: int = 1) -> list[str]:
    answers = await asyncio.gather(*(client.models() for _ in range(times)))
    return [info.name for models in answers for info in models]


def test_a_client_that_outlives_its_loop(live: str) -> None:
    client = AsyncClient(live, retry=ONCE)
    for _ in range(3):
        assert asyncio.run(ask(client, 3)) == ["moons"] * 3
        assert connections(live) == 0  # the end of the loop closed them
    asyncio.run(client.aclose())


def test_a_block_in_each_of_two_loops(live: str) -> None:
    async def run() -> list[str]:
        async with AsyncClient(live, retry=ONCE) as client:
            names = await ask(client, 2)
            assert await ask(client, 2) == names
            assert 1 <= connections(live) <= 2  # they are used again
        assert connections(live) == 0
        return names

    assert asyncio.run(run()) == asyncio.run(run()) == ["moons"] * 2


def test_a_client_that_nobody_closes(live: str) -> None:
    async def run() -> None:
        await ask(AsyncClient(live, retry=ONCE))

    asyncio.run(run())
    gc.collect()
    assert connections(live) == 0


def test_closed_clients_are_forgotten(live: str) -> None:
    async def run() -> int:
        for _ in range(5):
            async with AsyncClient(live, retry=ONCE) as client:
                await ask(client)
        return len(_open[asyncio.get_running_loop()])

    assert asyncio.run(run()) == 0


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio warns about what such a loop leaves open
def test_a_loop_that_is_closed_without_a_word(live: str) -> None:
    client = AsyncClient(live, retry=ONCE)

    def run() -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(ask(client)) == ["moons"]
        loop.close()

    for _ in range(3):
        run()
        gc.collect()
        assert connections(live) <= 1  # that of this loop; earlier ones are gone
    assert asyncio.run(ask(client)) == ["moons"]
    assert not [known for known in _open if known.is_closed() and _open[known]]
    gc.collect()
    assert connections(live) == 0


def test_two_loops_at_once(live: str) -> None:
    client, names = AsyncClient(live, retry=ONCE), []
    meet = threading.Barrier(2, timeout=30)

    async def run() -> list[str]:
        await ask(client)
        meet.wait()  # both have connections now
        return await ask(client, 3)

    threads = [threading.Thread(target=lambda: names.extend(asyncio.run(run()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["moons"] * 6
    assert connections(live) == 0


def test_a_stream_that_is_left_open_at_the_end_of_a_loop() -> None:
    events = b'event: start\ndata: {"model": "moons"}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 10000\r\n\r\n"
    left: list[Any] = []
    with answering(head + events) as url:
        client = AsyncClient(url, retry=ONCE)

        async def run() -> None:
            stream = client.stream("moons", 1)
            left.append(stream)
            await stream.__anext__()

        for _ in range(2):
            asyncio.run(run())
            assert connections(url) == 0


def test_a_call_that_is_cancelled_by_the_end_of_a_loop() -> None:
    with answering(None) as url:
        client = AsyncClient(url, retry=ONCE)

        async def run() -> None:
            task = asyncio.ensure_future(client.models())
            while not connections(url):
                await asyncio.sleep(0)
            assert not task.done()

        asyncio.run(run())
        assert connections(url) == 0
    with answering(HEAD) as url, pytest.raises(pathline.ProtocolError):
        asyncio.run(AsyncClient(url, retry=ONCE).sample("moons"))
    assert connections(url) == 0


def test_a_closed_client_says_so(live: str) -> None:
    async def run() -> None:
        client = AsyncClient(live, retry=ONCE)
        await ask(client)
        await client.aclose()
        await client.aclose()
        with pytest.raises(RuntimeError, match="this AsyncClient is closed; create another"):
            await ask(client)

    asyncio.run(run())


def test_a_transport_that_serves_any_loop(service: FakeService) -> None:
    client = AsyncClient("http://fake", transport=httpx.ASGITransport(service.app))
    assert asyncio.run(ask(client)) == asyncio.run(ask(client)) == ["moons"]
    asyncio.run(client.aclose())


def test_a_transport_that_serves_one_loop(service: FakeService) -> None:
    class Bound(httpx.AsyncBaseTransport):
        """A transport that fails as the sockets of another loop do."""

        loop: asyncio.AbstractEventLoop | None = None

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await self.aclose()
            return service.handle(request)

        async def aclose(self) -> None:
            self.loop = self.loop or asyncio.get_running_loop()
            if self.loop is not asyncio.get_running_loop():
                raise RuntimeError("Event loop is closed")

    client = AsyncClient("http://fake", retry=ONCE, transport=Bound())
    assert asyncio.run(ask(client)) == ["moons"]
    with pytest.raises(pathline.TransportError, match=r"was used in another event loop .* make one for each loop"):
        asyncio.run(ask(client))
    asyncio.run(client.aclose())
