"""Capacity plans: the fewest replicas that meet a latency target, each simulated with its share of the load."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.capacity.measure import Speed, measure
from fleet.capacity.mix import Kind, read_mix
from fleet.capacity.simulation import simulate
from fleet.errors import FleetError, UsageError

_MAX_FACTOR = 4096
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Planned:
    """The simulated outcome for a number of replicas.

    Attributes:
        replicas: number of replicas.
        rho: simulated share of the time that each spends computing.
        p50, p99: seconds of a request, HTTP included.
        refused: share of requests refused or late.
    """

    replicas: int
    rho: float
    p50: float
    p99: float
    refused: float


def least_replicas(kinds: Sequence[Kind], rate: float, speed: Speed) -> int:
    """Return a lower bound on the replicas: with fewer, the network rows alone would take more than all of the time."""
    shares = sum(kind.share for kind in kinds)
    rows = sum(kind.share * kind.rows * float(kind.plan.nfe or 0) for kind in kinds) / shares
    return max(1, math.ceil(rate * rows * speed.row_s))


def plan(kinds: Sequence[Kind], rate: float, p99: float, speed: Speed, requests: int = 2000) -> Planned:
    """Find the fewest replicas with which 99 of 100 requests finish in time and fewer than 1 in 1000 are refused.

    Arrivals at each replica are assumed independent; a balancer that knows the load can only do better.

    Raises:
        FleetError: no number of replicas is enough, as one request alone takes too long.
    """
    alone = _alone(kinds, speed)
    if alone > p99:
        raise FleetError(
            f"no number of replicas meets a p99 of {p99:g} s: even alone, one request in 100 takes {alone:.3g} s"
        )
    found: dict[int, Planned] = {}

    def holds(replicas: int) -> bool:
        got = simulate(kinds, rate / replicas, speed, requests, _TIMEOUT_S)
        refused = got.refused / requests
        p50, high = (got.quantile(share) if got.latencies else math.inf for share in (0.5, 0.99))
        found[replicas] = Planned(replicas, got.busy, p50, high, refused)
        return high <= p99 and refused < 1e-3

    low = least_replicas(kinds, rate, speed)
    high = low
    while not holds(high):
        if high >= _MAX_FACTOR * low:
            raise FleetError(f"{high} replicas do not meet a p99 of {p99:g} s; the target is too near {alone:.3g} s")
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return found[high]


def _alone(kinds: Sequence[Kind], speed: Speed) -> float:
    """Return the least seconds that one request in 100 takes with a replica to itself."""
    took = sorted((float(kind.plan.nfe or 0) * speed.call(kind.rows), kind.share) for kind in kinds)
    total, below = sum(kind.share for kind in kinds), 0.0
    for seconds, share in took:
        below += share
        if below >= 0.99 * total:
            return seconds + speed.request_s
    return took[-1][0] + speed.request_s


def add_plan(commands: Any) -> None:
    """Add the `plan` command."""
    parser: argparse.ArgumentParser = commands.add_parser("plan", help="compute how many replicas a load needs")
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--p99", type=float, required=True, help="seconds within which 99 %% of requests must finish")
    parser.add_argument(
        "--mix", type=Path, required=True, help="JSON file: share, num_samples and solver of each kind of request"
    )
    parser.add_argument("--service", metavar="URL", help="an idle service to measure")
    parser.add_argument("--model", default="moons", help="model to measure with (default: moons)")
    parser.add_argument("--call-ms", type=float, help="a in t(n) = a + b n, the time of a call; skips the measurement")
    parser.add_argument("--row-us", type=float, help="b in t(n) = a + b n")
    parser.add_argument(
        "--request-ms", type=float, default=0.0, help="time of a request outside its calls (default: 0)"
    )
    parser.add_argument("--handling-ms", type=float, default=0.0, help="part of it that delays others (default: 0)")
    parser.add_argument("--price", type=float, default=0.0, help="price of one replica per hour")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    for name in ("rate", "p99"):
        if not 0 < getattr(options, name) < math.inf:
            raise UsageError(f"--{name} is {getattr(options, name)}; it must be above 0")
    kinds = read_mix(options.mix)
    if options.service:
        speed = measure(options.service, options.model)
    elif options.call_ms is not None and options.row_us is not None:
        speed = Speed(options.call_ms / 1e3, options.row_us / 1e6, options.request_ms / 1e3, options.handling_ms / 1e3)
    else:
        raise UsageError("give --service URL, or --call-ms and --row-us from an earlier measurement")
    found = plan(kinds, options.rate, options.p99, speed)
    samples = sum(kind.share * kind.samples for kind in kinds) / sum(kind.share for kind in kinds)
    print(f"t(n) = {1e3 * speed.call_s:.3g} ms + {1e6 * speed.row_s:.3g} us n for a network call of n rows")
    print(
        f"{1e3 * speed.request_s:.3g} ms of a request outside its network calls; "
        f"in {1e3 * speed.handling_s:.3g} ms of them it blocks the others"
    )
    if speed.cpu_s is not None:
        print(f"CPU time of a request outside its network calls: {1e3 * speed.cpu_s:.3g} ms")
    print(f"{found.replicas} replicas, each busy {found.rho:.0%} of the time (simulated)")
    print(f"p50 {1e3 * found.p50:.3g} ms, p99 {1e3 * found.p99:.3g} ms, refused {found.refused:.2%}")
    if options.price:
        cost = found.replicas * options.price / 3600 / (options.rate * samples) * 1000
        print(f"{cost:.3g} for a thousand samples, at {options.price:g} per replica and hour")
    return 0
