"""`python -m studies.serving.overload`: more requests than the service can answer, from clients that do not wait.

Requests arrive at random at a rate that does not depend on the service (an open loop). First, a few clients in a closed
loop measure the capacity of the service; then come multiples of that rate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from studies.serving.servers import server

_AT_ONCE = 8


@dataclass
class Found:
    """Results of some seconds at one rate: outcomes by status, seconds of answers in time."""

    rate: float
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def row(self, lasted: float) -> str:
        """Return the line of the table."""
        statuses = self.statuses
        taken = statuses[200] + statuses[504]
        p50 = f"{sorted(self.seconds)[len(self.seconds) // 2]:.2f}" if self.seconds else ""
        late = f"{100 * statuses[504] / taken:.1f}" if taken else ""
        return (
            f"| {self.rate:.1f} | {statuses.total()} | {statuses[200]} | {statuses[429]} | {statuses[422]} "
            f"| {statuses[504]} | {late} | {statuses[200] / lasted:.1f} | {p50} |"
        )


async def _ask(session: aiohttp.ClientSession, url: str, request: dict[str, object], found: Found) -> None:
    begin = time.perf_counter()
    async with session.post(f"{url}/v1/sample", json=request) as answer:
        await answer.read()
    found.statuses[answer.status] += 1
    if answer.status == 200:
        found.seconds.append(time.perf_counter() - begin)


async def _open(url: str, request: dict[str, object], rate: float, seconds: float) -> Found:
    found, chance = Found(rate), Random(1)  # noqa: S311  (load, not secrets)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begin, when, asking = time.perf_counter(), 0.0, []
        while (when := when + chance.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, begin + when - time.perf_counter()))
            asking.append(asyncio.ensure_future(_ask(session, url, request, found)))
        await asyncio.gather(*asking)
    return found


async def _capacity(url: str, request: dict[str, object], seconds: float) -> float:
    """Return the answers per second to a few clients in a closed loop."""
    found = Found(0.0)
    async with aiohttp.ClientSession() as session:
        end = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                await _ask(session, url, {**request, "timeout_s": 60}, found)

        await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
    return found.statuses[200] / seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.serving.overload", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/digits/1"))
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=2.0, help="limit for each request in seconds")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds per rate")
    parser.add_argument(
        "--times", type=float, nargs="*", default=[0.5, 1.0, 2.0, 4.5], help="multiples of the capacity"
    )
    given = parser.parse_args()
    path = given.checkpoint.resolve()
    request = {"model": path.parent.name, "num_samples": given.samples, "solver": "dopri5", "timeout_s": given.timeout}
    cores, load = sorted(os.sched_getaffinity(0)), os.getloadavg()[0]
    with server("pathline", path, cores[0]) as service:
        asyncio.run(_capacity(service.url, request, 3.0))  # warms up
        most = asyncio.run(_capacity(service.url, request, given.seconds / 2))
        print(f"load {load:.1f} at the start; {_AT_ONCE} clients in a closed loop: {most:.1f} answers per second\n")
        print("| requests/s | requests | 200 | 429 | 422 | 504 | 504, % of accepted | goodput/s | p50 s |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for times in given.times:
            print(asyncio.run(_open(service.url, request, times * most, given.seconds)).row(given.seconds), flush=True)


if __name__ == "__main__":
    main()
