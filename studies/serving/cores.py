"""`python -m studies.serving.cores`: what HTTP workers (`PATHLINE_HTTP_WORKERS`) change, on all cores.

Services with different numbers of workers take turns; they share the cores with their clients, and nothing is pinned.
`/livez` is requested meanwhile, as a light request under load. The machine must be idle, because rates are in
wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from studies.serving.load import run_round
from studies.serving.servers import Running, server
from studies.serving.workloads import WORKLOADS

_ASK_EVERY_S = 0.02
_SHOWN_THREADS = 3
_SETTLE_S = 4.0  # networks go on being measured while there are no requests


@dataclass(frozen=True)
class Shared:
    """One round with service and clients on the same cores.

    Attributes:
        rate: answers a second.
        cpu_ms: processor time of an answer in the service.
        threads_ms: the same in each of its busiest threads.
        busy: share of the cores' time, clients included.
        livez_ms: each request for `/livez`.
    """

    rate: float
    cpu_ms: float
    threads_ms: tuple[float, ...]
    busy: float
    livez_ms: tuple[float, ...]


@contextmanager
def _asking(url: str) -> Iterator[list[float]]:
    """Ask for `/livez` all the time; the milliseconds that it took."""
    found: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client() as client:
            while not stop.is_set():
                begin = time.perf_counter()
                client.get(f"{url}/livez")
                found.append(1000 * (time.perf_counter() - begin))
                time.sleep(_ASK_EVERY_S)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def measure(service: Running, name: str, seconds: float, seed: int, cores: int) -> Shared:
    """Load a service for some seconds."""
    with _asking(service.url) as livez:
        own = time.process_time()
        result = run_round(service, WORKLOADS[name], seconds, seed)
        clients = time.process_time() - own
    answers = len(result.latencies)
    threads = tuple(1000 * clock / answers for clock in result.clocks[:_SHOWN_THREADS])
    busy = (sum(result.clocks) + clients) / (cores * seconds)
    return Shared(result.rate, 1000 * sum(result.clocks) / answers, threads, busy, tuple(livez))


def row(name: str, workers: int, rounds: Sequence[Shared], without: Sequence[Shared]) -> str:
    """Return one line of the table."""
    rates, base = [each.rate for each in rounds], median(each.rate for each in without)
    threads = (median(each.threads_ms[k] for each in rounds) for k in range(_SHOWN_THREADS))
    p50, p99 = np.quantile([ms for each in rounds for ms in each.livez_ms], (0.5, 0.99)).tolist()
    return (
        f"| {name} | {workers} | {median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) "
        f"| {median(rates) / base:.2f} | {median(each.cpu_ms for each in rounds):.2f} "
        f"| {' '.join(f'{ms:.2f}' for ms in threads)} | {100 * median(each.busy for each in rounds):.0f} % "
        f"| {p50:.1f}, {p99:.1f} |"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m studies.serving.cores", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["d", "e"], help=f"of {', '.join(WORKLOADS)}; d and e")
    parser.add_argument("--workers", default="0,1,2", help="numbers of HTTP workers, 0 first")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/moons/1"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one round")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.workers.split(",")]
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f} at the start\n")
    found: dict[tuple[str, int], list[Shared]] = {}
    with ExitStack() as stack:
        checkpoint = arguments.checkpoint.resolve()
        services = {
            count: stack.enter_context(server("pathline", checkpoint, None, PATHLINE_HTTP_WORKERS=str(count)))
            for count in counts
        }
        time.sleep(_SETTLE_S)
        for service in services.values():
            for name in arguments.workloads:
                run_round(service, WORKLOADS[name], 1.0, 0)
        for turn in range(arguments.rounds):
            for name in arguments.workloads:
                for count in counts if turn % 2 else reversed(counts):
                    shared = measure(services[count], name, arguments.seconds, turn + 1, cores)
                    found.setdefault((name, count), []).append(shared)
    print(
        "| workload | HTTP workers | answers/s | times without | CPU ms per answer | busiest threads ms | cores busy "
        "| /livez p50, p99 ms |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in arguments.workloads:
        for count in counts:
            print(row(name, count, found[name, count], found[name, counts[0]]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
