"""`python -m benchmarks.serving.cores`: how much faster answers could come from a separate HTTP process.

Service and clients share all cores; nothing is pinned. The bound takes the processor time of an answer as measured,
adds that of a crossing between two processes, and lets everything overlap: it is the rate at which all cores are
busy, or the engine's thread is. The win is how far it lies above the rate that was reached. A separate process also
lowers that processor time, since threads no longer wait for each other, so the real win can be larger. `/livez` is
requested meanwhile, as a light request under load. The machine must be idle, because rates are in wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from benchmarks.serving.load import Round, run_round
from benchmarks.serving.servers import Running, server
from benchmarks.serving.workloads import WORKLOADS

_REQUEST = {"model": "moons", "version": 1, "solver": "rk4-20", "num_samples": 3, "seed": 5, "deadline": 1.0}
_RESULT = {
    "x": np.zeros((3, 2), np.float32),
    "t": np.ones(3),
    "nfe": np.full(3, 80),
    "status": np.array(["success"] * 3),
    "times": (240, 0.1, 0.1, 0.1),
    "trace": np.zeros((40, 5)),
}
_ASK_EVERY_S = 0.02


@dataclass(frozen=True)
class Shared:
    """One round with service and clients on the same cores.

    Attributes:
        rate: answers a second.
        engine_ms, http_ms, clients_ms: processor time of an answer.
        busy: share of the cores' time.
        win: by how much the bound is over the rate, as a share of it.
        livez_ms: (p50, p99) of `/livez` meanwhile.
    """

    rate: float
    engine_ms: float
    http_ms: float
    clients_ms: float
    busy: float
    win: float
    livez_ms: tuple[float, float]


def crossing_s(repetitions: int = 2000) -> float:
    """Seconds of processor time for a request and its result, pickled across a socket, both ends together."""
    near, far = socket.socketpair()
    with near, far:

        def cross(message: object) -> float:
            begin = time.thread_time()
            for _ in range(repetitions):
                near.sendall(pickle.dumps(message, 5))
                pickle.loads(far.recv(1 << 16))  # noqa: S301  (our own)
            return (time.thread_time() - begin) / repetitions

        return sum(min(cross(message) for _ in range(3)) for message in (_REQUEST, _RESULT))


def bound(engine_s: float, others_s: float, cores: int) -> float:
    """The most answers a second: all cores busy, or the engine's thread, which has one core at most."""
    return min(cores / (engine_s + others_s), 1 / engine_s)


@contextmanager
def _asking(url: str) -> Iterator[list[float]]:
    """Ask for `/livez` all the time; the milliseconds that it took."""
    found, stop = [], threading.Event()

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


def _quantiles(milliseconds: list[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(milliseconds, (0.5, 0.99)).tolist()
    return p50, p99


def measure(service: Running, name: str, seconds: float, seed: int, cores: int, crossing: float) -> Shared:
    """Load a service for some seconds."""
    with _asking(service.url) as livez:
        own = time.process_time()
        result: Round = run_round(service, WORKLOADS[name], seconds, seed)
        clients = time.process_time() - own
    answers = len(result.latencies)
    engine, http = (each / answers for each in result.clocks[:2])
    most = bound(engine, http + clients / answers + crossing, cores)
    busy = (sum(result.clocks) + clients) / (cores * seconds)
    engine_ms, http_ms, clients_ms = 1000 * engine, 1000 * http, 1000 * clients / answers
    return Shared(result.rate, engine_ms, http_ms, clients_ms, busy, most / result.rate - 1, _quantiles(livez))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.cores", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["d", "e"], help=f"of {', '.join(WORKLOADS)}; d and e")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/moons/1"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one round")
    arguments = parser.parse_args()
    cores, load, crossing = len(os.sched_getaffinity(0)), os.getloadavg()[0], crossing_s()
    print(f"{cores} cores, load {load:.1f} at the start; a request and its result cross in {1000 * crossing:.3f} ms\n")
    with server("pathline", arguments.checkpoint.resolve(), None) as service:
        with _asking(service.url) as idle:
            time.sleep(2)
        print(
            "| workload | answers/s | engine's thread ms | HTTP's thread ms | clients ms | cores busy "
            "| bound of the win | /livez p50, p99 ms |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
        )
        print("| none | | | | | | | {:.1f}, {:.1f} |".format(*_quantiles(idle)))
        for name in arguments.workloads:
            run_round(service, WORKLOADS[name], 1.0, 0)
            rounds = [
                measure(service, name, arguments.seconds, turn + 1, cores, crossing) for turn in range(arguments.rounds)
            ]
            p50, p99 = (median(each.livez_ms[k] for each in rounds) for k in (0, 1))
            print(
                f"| {name} | {median(each.rate for each in rounds):.0f} "
                f"| {median(each.engine_ms for each in rounds):.2f} | {median(each.http_ms for each in rounds):.2f} "
                f"| {median(each.clients_ms for each in rounds):.2f} "
                f"| {100 * median(each.busy for each in rounds):.0f} % "
                f"| {100 * median(each.win for each in rounds):.0f} % | {p50:.1f}, {p99:.1f} |"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
