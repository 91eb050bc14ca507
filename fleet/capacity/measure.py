"""Measuring the speed of a live service: seconds per network call by rows, and per request outside its calls."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fleet.errors import FleetError

_ROWS, _SOLVER, _REPEATS, _NFE = (1, 16, 64, 256), "rk4-20", 15, 80
_LONG_S, _LONG_ROWS, _ASIDE_ROWS, _PAUSE_S = 1.5, 64, 16, 0.02
_MAX_STEPS = 2500  # of rk4, by the default `max_nfe` of a request


@dataclass(frozen=True)
class Speed:
    """The speed of a service.

    Attributes:
        call_s, row_s: a and b of t(n) = a + b n, seconds of a network call of n rows including overhead.
        request_s: seconds of a request outside its network calls, for the only client of a service.
        handling_s: seconds for which reading and answering a request blocks all others, as the thread that handles
            requests and the one that computes wait for each other. At most `request_s`.
        cpu_s: CPU seconds of a request outside its calls; None if unknown, as on a busy machine.
    """

    call_s: float
    row_s: float
    request_s: float = 0.0
    handling_s: float = 0.0
    cpu_s: float | None = None

    def call(self, rows: int) -> float:
        """Return the seconds of a call."""
        return self.call_s + self.row_s * rows

    @property
    def rest_s(self) -> float:
        """Seconds of a request outside its calls that block nothing else: sockets, and the client."""
        return max(0.0, self.request_s - self.handling_s)


def measure(url: str, model: str) -> Speed:
    """Measure an otherwise idle service; this takes about ten seconds.

    Raises:
        FleetError: the service does not answer, or refuses a request.
    """
    with closing(_Service(url, model)) as service:
        return _measured(service)


def _measured(service: _Service) -> Speed:
    calls: dict[int, float] = {}
    overheads: list[float] = []
    service.solve(_ROWS[-1], 0)  # the first request includes one-time preparation
    before, count, solving = service.cpu(), 0, 0.0
    for rows in _ROWS:
        solves = []
        for seed in range(_REPEATS):
            time.sleep(_PAUSE_S)  # requests under load find cold caches too
            begin = time.perf_counter()
            solve_s = service.solve(rows, seed)
            overheads.append(time.perf_counter() - begin - solve_s)
            solves.append(solve_s)
            solving, count = solving + solve_s, count + 1
        calls[rows] = float(np.median(solves)) / _NFE
    after = service.cpu()
    seconds = np.array(list(calls.values()))
    row_s, call_s = np.polyfit(list(calls), seconds, 1, w=1 / seconds)  # small calls count as much as large ones
    spent = 0.0 if before is None or after is None else (after - before - solving) / count
    speed = Speed(max(0.0, float(call_s)), max(0.0, float(row_s)), float(np.median(overheads)))
    held = min(speed.request_s, _handling(service, speed))
    return Speed(speed.call_s, speed.row_s, speed.request_s, held, spent if spent > 0 else None)


def _handling(service: _Service, speed: Speed) -> float:
    """Return the seconds that each short request adds to a long one running at the same time."""
    steps = int(min(_MAX_STEPS, max(20, _LONG_S / (4 * speed.call(_LONG_ROWS)))))
    alone = min(service.solve(_LONG_ROWS, seed, f"rk4-{steps}") for seed in range(2))
    found: list[float] = []

    def solve() -> None:
        with closing(service.other()) as other:
            found.append(other.solve(_LONG_ROWS, 0, f"rk4-{steps}"))

    long = threading.Thread(target=solve)
    long.start()
    short = 0
    while long.is_alive():
        service.solve(_ASIDE_ROWS, short, "euler-1")
        short += 1
    long.join()
    if not found:
        raise FleetError(f"{service.url}: refused a request of {_LONG_ROWS} samples by rk4-{steps}")
    return max(0.0, (found[0] - alone) / short - _ASIDE_ROWS * speed.row_s)


class _Service:
    """A service, reached over one connection."""

    def __init__(self, url: str, model: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise FleetError(f"{url}: is not the address of a service; use http://HOST:PORT")
        self.url, self._model, parts = url, model, urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = parts.path.rstrip("/")
        self._connection = kind(parts.hostname or "", parts.port, timeout=60)

    def other(self) -> _Service:
        """Return the same service over another connection."""
        return _Service(self.url, self._model)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def solve(self, rows: int, seed: int, solver: str = _SOLVER) -> float:
        """Request samples; return the seconds from the first network call to the last."""
        body = {"model": self._model, "num_samples": rows, "seed": seed, "solver": solver, "trace": "none"}
        return float(json.loads(self._ask("/v1/sample", body))["latency"]["solve_s"])

    def cpu(self) -> float | None:
        """Return the CPU seconds of the process so far."""
        found = re.search(r"^process_cpu_seconds_total (\S+)$", self._ask("/metrics").decode(), re.MULTILINE)
        return None if found is None else float(found.group(1))

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            method = "GET" if body is None else "POST"
            self._connection.request(method, self._path + path, data, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise FleetError(f"{self.url}: does not answer: {error}") from None
        if answer.status != 200:
            raise FleetError(f"{self.url}{path}: {answer.status}: {content[:300].decode(errors='replace')}")
        return content
