"""Overhead of balancers: the same request sent directly and through one, in turn, over persistent connections.

It also measures how soon a replica behind it notices that a client has disconnected.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import urlopen

from studies.fleet import running

ROUNDS, _WARM, _LEAVES = 300, 30, 3
BODY = {"model": "moons", "num_samples": 16, "solver": "rk4-20", "seed": 1, "trace": "none"}
GOALS_MS = {
    "nginx": 1.0,
    "Ray, its proxy": None,
    "Ray, HAProxy": 3.0,
    "Ray, HAProxy, by requests": 3.0,
}


class Client:
    """A client that sends requests over one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._body = json.dumps(BODY).encode()

    def ask(self) -> tuple[float, bytes]:
        """Send a request; return its seconds and the samples."""
        headers = {"Content-Type": "application/json", "Accept": "application/x-npy"}
        begin = time.perf_counter()
        self._connection.request("POST", "/v1/sample", self._body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        took = time.perf_counter() - begin
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {content[:300]!r}")
        return took, content


def compare(direct: str, through: str) -> tuple[float, float, float]:
    """Return median seconds directly and through a balancer, and the median of the pairwise differences."""
    clients = Client(direct), Client(through)
    for client in clients:
        for _ in range(_WARM):
            client.ask()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        answers = {}
        for which in (0, 1) if number % 2 else (1, 0):
            took, answers[which] = clients[which].ask()
            times[which].append(took)
        assert answers[0] == answers[1]
    differences = [other - one for one, other in zip(*times, strict=True)]
    return statistics.median(times[0]), statistics.median(times[1]), statistics.median(differences)


def leave(through: str, load: str) -> float:
    """Return the median seconds until a replica stops the job of a client that has disconnected.

    Args:
        through: address of the balancer.
        load: address at which the replica reports its load.
    """
    took = []
    for _ in range(_LEAVES):
        parts = urlsplit(through)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        body = json.dumps(
            BODY | {"num_samples": 1000, "solver": "rk4-5000", "max_nfe": 40000, "timeout_s": 600}
        ).encode()
        connection.request("POST", "/v1/sample", body, {"Content-Type": "application/json"})
        while not _jobs(load):
            time.sleep(0.02)
        begin = time.perf_counter()
        connection.close()
        while _jobs(load):
            time.sleep(0.01)
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def _jobs(load: str) -> int:
    with urlopen(f"{load}/v1/load", timeout=60) as answer:  # noqa: S310  (ours)
        return int(json.load(answer)["jobs"])


@contextmanager
def balancer(name: str, direct: str) -> Iterator[str]:
    """Run a balancer."""
    if name == "nginx":
        with running.nginx(direct) as url:
            yield url
    else:
        with running.ray("HAProxy" in name, "requests" if name.endswith("by requests") else "work") as url:
            yield url


def lacking(name: str) -> str:
    """Return the command that installs what a balancer lacks, or an empty string."""
    if name == "nginx":
        return "" if running.NGINX.exists() else "apt-get install nginx-light"
    return "" if running.RAY.exists() else "make .venv/fleet/.done"


def table(names: list[str]) -> bool:
    """Print a line for each balancer; return whether all goals are met."""
    print(f"\n{ROUNDS} pairs of requests in turn, {BODY['num_samples']} samples by {BODY['solver']}, kept alive")
    print(f"{'':25} {'direct p50':>12} {'through p50':>12} {'adds':>10} {'goal':>10}  disconnect noticed after")
    met = True
    with running.service() as direct:
        for name in names:
            if need := lacking(name):
                print(f"{name:25} skipped; first run: {need}")
                continue
            with balancer(name, direct) as url:
                one, other, adds = compare(direct, url)
                left = leave(url, direct if name == "nginx" else url)
            goal = GOALS_MS[name]
            limit = "" if goal is None else f"<= {goal:g} ms"
            verdict = "" if goal is None else ("met" if 1e3 * adds <= goal else "MISSED")
            met &= left <= 1 and (goal is None or 1e3 * adds <= goal)
            print(
                f"{name:25} {1e3 * one:9.2f} ms {1e3 * other:9.2f} ms {1e3 * adds:7.2f} ms {limit:>10} {verdict:6} "
                f"{left:.2f} s (goal <= 1 s){'' if left <= 1 else ' MISSED'}",
                flush=True,
            )
    return met
