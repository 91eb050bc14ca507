"""Closed-loop clients: each sends its next request as soon as it has its answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

import aiohttp

from studies.serving.servers import Running
from studies.serving.workloads import Workload, label


@dataclass
class Round:
    """Results of some seconds of a workload.

    Attributes:
        seconds: length of the round.
        latencies: (label, seconds) of every answer that arrived in that time.
        rows: network rows that these answers took, as reported by the service.
        clocks: seconds of processor time of each thread of the service, the busiest first.
    """

    seconds: float = 0.0
    latencies: list[tuple[str, float]] = field(default_factory=list)
    rows: float = 0.0
    clocks: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    @property
    def cost(self) -> float:
        """Seconds of processor time per answer, over all threads."""
        return sum(self.clocks) / max(len(self.latencies), 1)


async def _client(
    session: aiohttp.ClientSession, service: Running, workload: Workload, seed: int, end: float, out: Round
) -> None:
    draw, kind = Random(seed), service.kind  # noqa: S311  (load, not secrets)
    headers = {"Content-Type": "application/json"}
    while time.perf_counter() < end:
        request = {"model": "moons", "seed": draw.randrange(2**31), **workload.draw(draw)}
        begin = time.perf_counter()
        async with session.post(service.url + kind.path, data=kind.encode(request), headers=headers) as response:
            content = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{request}: {response.status} {content[:300]!r}")
        done = time.perf_counter()
        if done < end:
            out.latencies.append((label(request), done - begin))
            answer = kind.decode(content)
            out.rows += answer.nfe * len(answer.samples)


async def _round(service: Running, workload: Workload, seconds: float, seed: int) -> Round:
    out, before = Round(seconds), service.clocks()
    async with aiohttp.ClientSession() as session:
        end = time.perf_counter() + seconds
        clients = (_client(session, service, workload, 1000 * seed + k, end, out) for k in range(workload.clients))
        await asyncio.gather(*clients)
    after = service.clocks()
    out.clocks = sorted((after[thread] - before.get(thread, 0.0) for thread in after), reverse=True)
    return out


def run_round(service: Running, workload: Workload, seconds: float, seed: int) -> Round:
    """Put load on a service for some seconds; the same seed sends the same requests."""
    return asyncio.run(_round(service, workload, seconds, seed))
