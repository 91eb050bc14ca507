"""Closed-loop clients: each asks again as soon as it has its answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

import aiohttp
import orjson

from benchmarks.serving.workloads import Workload, label


@dataclass
class Round:
    """What some seconds of a workload gave.

    Attributes:
        seconds: how long it took.
        latencies: (label, seconds) of every answer that came in that time.
        rows: network rows that these answers took, as far as the service tells.
    """

    seconds: float = 0.0
    latencies: list[tuple[str, float]] = field(default_factory=list)
    rows: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds


async def _client(
    session: aiohttp.ClientSession, url: str, workload: Workload, seed: int, end: float, out: Round
) -> None:
    draw = Random(seed)  # noqa: S311  (load, not secrets)
    while time.perf_counter() < end:
        wish = {"model": "moons", "seed": draw.randrange(2**31), **workload.draw(draw)}
        begin = time.perf_counter()
        async with session.post(f"{url}/v1/sample", json=wish) as response:
            content = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{wish}: {response.status} {content[:300]!r}")
        done = time.perf_counter()
        if done < end:
            out.latencies.append((label(wish), done - begin))
            answer = orjson.loads(content)
            per_sample = answer["nfe_per_sample"]["mean"] if "nfe_per_sample" in answer else answer["nfe"]
            out.rows += per_sample * len(answer["samples"])


async def _round(url: str, workload: Workload, seconds: float, seed: int) -> Round:
    out = Round(seconds)
    async with aiohttp.ClientSession(json_serialize=lambda value: orjson.dumps(value).decode()) as session:
        end = time.perf_counter() + seconds
        clients = (_client(session, url, workload, 1000 * seed + k, end, out) for k in range(workload.clients))
        await asyncio.gather(*clients)
    return out


def run_round(url: str, workload: Workload, seconds: float, seed: int) -> Round:
    """Load a service for some seconds; the same seed asks for the same."""
    return asyncio.run(_round(url, workload, seconds, seed))
