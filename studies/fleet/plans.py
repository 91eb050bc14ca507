"""Accuracy of `fleet plan`: measured latencies of a live service under load, and simulated ones.

Requests arrive at the same times in both, whatever the service does (an open loop), and latency counts from the time
at which a request was due.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from fleet.capacity.measure import Speed, measure
from fleet.capacity.mix import Kind, arrivals, read_mix
from fleet.capacity.simulation import simulate

MIXES: dict[str, list[dict[str, Any]]] = {
    "small": [{"share": 1, "num_samples": 16, "solver": "rk4-20"}],
    "a tenth large": [
        {"share": 9, "num_samples": 16, "solver": "rk4-20"},
        {"share": 1, "num_samples": 256, "solver": "rk4-20"},
    ],
    "many solvers": [
        {"share": 4, "num_samples": 1, "solver": "euler-100"},
        {"share": 4, "num_samples": 64, "solver": "midpoint-20"},
        {"share": 2, "num_samples": 128, "solver": "rk4-20"},
    ],
}
LOADS, WITHIN = (0.3, 0.55, 0.8), 0.25
_TIMEOUT_S = 30.0
_ALONE, _APART_S = 60, 0.05


def kinds_of(mix: list[dict[str, Any]]) -> list[Kind]:
    """Read a mix."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(mix, file)
        file.flush()
        return read_mix(Path(file.name))


def rate_of(kinds: Sequence[Kind], speed: Speed, load: float) -> float:
    """Return the requests per second that keep the service busy for this share of the time if none share calls."""
    shares = sum(kind.share for kind in kinds)
    work = sum(kind.share * float(kind.plan.nfe or 0) * speed.call(kind.rows) for kind in kinds) / shares
    return load / (work + speed.handling_s)


async def _live(url: str, model: str, due: list[tuple[float, Kind]]) -> tuple[list[float], list[dict[str, float]]]:
    latencies, reported = list[float](), list[dict[str, float]]()
    begin = time.perf_counter() + 0.1

    async def one(session: aiohttp.ClientSession, when: float, kind: Kind, seed: int) -> None:
        body = {"model": model, "num_samples": kind.samples, "solver": kind.solver, "seed": seed, "trace": "none"}
        await asyncio.sleep(max(0.0, begin + when - time.perf_counter()))
        async with session.post(f"{url}/v1/sample", json=body | {"timeout_s": _TIMEOUT_S}) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {content[:300]!r}")
        latencies.append(time.perf_counter() - begin - when)
        reported.append(json.loads(content)["latency"])

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one(session, when, kind, seed) for seed, (when, kind) in enumerate(due)))
    return sorted(latencies), reported


def beside(url: str, model: str, kind: Kind) -> float:
    """Return the seconds of a request outside its network calls, as seen by this client, one request at a time."""
    latencies, reported = asyncio.run(_live(url, model, [(_APART_S * number, kind) for number in range(_ALONE)]))
    return statistics.median(latencies) - statistics.median(each["solve_s"] for each in reported)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(url: str, model: str, seconds: float, detail: bool = False) -> bool:
    """Put load on a service, print measured and simulated latencies, and return whether all are close enough."""
    speed = measure(url, model)
    waited = beside(url, model, kinds_of(MIXES["small"])[0])  # an asynchronous client takes longer than a plain one
    speed = replace(speed, request_s=waited, handling_s=min(waited, speed.handling_s))
    print(f"\n{url}: t(n) = {1e3 * speed.call_s:.3f} ms + {1e6 * speed.row_s:.2f} us n for a call of n rows;")
    print(
        f"a request takes {1e3 * speed.request_s:.2f} ms outside its calls, and blocks others for "
        f"{1e3 * speed.handling_s:.2f} ms of them"
    )
    print(f"{'':14} {'load':>5} {'rate':>6}   {'p50 measured, planned':>28}   {'p99 measured, planned':>28}")
    met = True
    for name, mix in MIXES.items():
        kinds = kinds_of(mix)
        for number, load in enumerate(LOADS):
            rate = rate_of(kinds, speed, load)
            requests = max(100, int(seconds * rate))
            live, reported = asyncio.run(_live(url, model, arrivals(kinds, rate, requests, number)))
            planned = simulate(kinds, rate, speed, requests, _TIMEOUT_S, number)
            parts = []
            for share in (0.5, 0.99):
                one, other = _at(live, share), planned.quantile(share)
                off = other / one - 1
                met &= abs(off) <= WITHIN
                parts.append(
                    f"{1e3 * one:7.1f} ms {1e3 * other:7.1f} ms {off:+5.0%}{' ' if abs(off) <= WITHIN else '!'}"
                )
            print(f"{name:14} {load:5.2f} {rate:6.1f}   {'   '.join(parts)}", flush=True)
            if detail:
                means = {key: sum(each[key] for each in reported) / len(reported) for key in reported[0]}
                print(
                    "   mean of the service: " + ", ".join(f"{key} {1e3 * value:.2f}" for key, value in means.items())
                )
    again = measure(url, model)
    drift = max(abs(again.call(rows) / speed.call(rows) - 1) for rows in (1, 64))
    print(f"measured again at the end, t(n) is {drift:.0%} off" + (": the machine is not idle" if drift > 0.1 else ""))
    print(f"within {WITHIN:.0%} everywhere" if met else f"! is further off than {WITHIN:.0%}")
    return met
