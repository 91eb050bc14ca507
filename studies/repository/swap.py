"""Requests in a closed loop while a new version of their model takes over."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np


@dataclass(frozen=True)
class Round:
    """Results of a round: whether a new version took over during it, answered requests, and latencies in ms."""

    swapped: bool
    requests: int
    p50: float
    p99: float
    longest: float


async def _client(session: aiohttp.ClientSession, url: str, number: int, end: float, out: list[float]) -> None:
    request = {"model": "moons", "num_samples": 4 + number, "seed": number, "solver": "rk4", "steps": 5 + number}
    while time.perf_counter() < end:
        begin = time.perf_counter()
        async with session.post(f"{url}/v1/sample", json=request) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {content[:300]!r}")
        out.append(1000 * (time.perf_counter() - begin))


async def _swap(session: aiohttp.ClientSession, url: str, key: str, after: float) -> None:
    await asyncio.sleep(after)
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post(f"{url}/v1/models:reload", headers=headers) as answer:
        changes = await answer.json()
        if not changes["loaded"] or not changes["unloaded"]:
            raise RuntimeError(f"nothing was swapped: {changes}")


async def _round(url: str, key: str | None, seconds: float, clients: int) -> Round:
    out: list[float] = []
    async with aiohttp.ClientSession() as session:
        end = time.perf_counter() + seconds
        load = [_client(session, url, number, end, out) for number in range(clients)]
        await asyncio.gather(*load, *([] if key is None else [_swap(session, url, key, seconds / 3)]))
    p50, p99, longest = np.quantile(out, (0.5, 0.99, 1.0))
    return Round(key is not None, len(out), float(p50), float(p99), float(longest))


def rounds(url: str, key: str, root: Path, stock: Path, count: int, seconds: float, clients: int) -> list[Round]:
    """Put load on a service in rounds, alternately without and with a swap.

    Args:
        url: address of the service.
        key: its admin key.
        root: its repository, with version 1 of `moons`.
        stock: another repository, with versions 2 and up.
        count: rounds of each kind.
        seconds: length of a round.
        clients: number of concurrent clients.
    """
    asyncio.run(_round(url, None, 1.0, clients))  # warms up
    found = []
    for turn in range(count):
        found.append(asyncio.run(_round(url, None, seconds, clients)))
        copying = root / "moons" / f".{turn + 2}"
        shutil.copytree(stock / "moons" / str(turn + 2), copying)
        copying.rename(root / "moons" / str(turn + 2))
        found.append(asyncio.run(_round(url, key, seconds, clients)))
    return found
