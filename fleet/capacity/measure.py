"""The speed of a live service: seconds of a network call by rows, and of a request without its calls."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleet.errors import FleetError

_ROWS, _SOLVER, _REPEATS = (1, 16, 64, 256), "rk4-20", 7
_NFE = 80


@dataclass(frozen=True)
class Speed:
    """The speed of a service.

    Attributes:
        call_s, row_s: a and b of t(n) = a + b n, seconds of a network call of n rows with its overhead.
        request_s: seconds of a request without its network calls: HTTP, parsing, encoding.
        cpu_s: CPU seconds of a request without its calls; None if unknown, as on a busy machine.
    """

    call_s: float
    row_s: float
    request_s: float
    cpu_s: float | None = None

    def call(self, rows: int) -> float:
        """Seconds of a call."""
        return self.call_s + self.row_s * rows


def measure(url: str, model: str) -> Speed:
    """Measure an otherwise idle service; this takes a few seconds.

    Raises:
        FleetError: the service does not answer, or refuses.
    """
    calls: dict[int, float] = {}
    beside: list[float] = []
    before, count = _cpu(url), 0
    solving = 0.0
    for rows in _ROWS:
        solves = []
        for seed in range(_REPEATS):
            begin = time.perf_counter()
            solve_s = _solve(url, model, rows, seed)
            beside.append(time.perf_counter() - begin - solve_s)
            solves.append(solve_s)
            solving, count = solving + solve_s, count + 1
        calls[rows] = float(np.median(solves)) / _NFE
    after = _cpu(url)
    row_s, call_s = np.polyfit(list(calls), list(calls.values()), 1)
    spent = 0.0 if before is None or after is None else (after - before - solving) / count
    return Speed(
        max(0.0, float(call_s)), max(0.0, float(row_s)), float(np.median(beside)), spent if spent > 0 else None
    )


def _solve(url: str, model: str, rows: int, seed: int) -> float:
    body = {"model": model, "num_samples": rows, "seed": seed, "solver": _SOLVER, "trace": "none"}
    found = json.loads(_ask(f"{url.rstrip('/')}/v1/sample", body))
    return float(found["latency"]["solve_s"])


def _cpu(url: str) -> float | None:
    found = re.search(r"^process_cpu_seconds_total (\S+)$", _ask(f"{url.rstrip('/')}/metrics").decode(), re.MULTILINE)
    return None if found is None else float(found.group(1))


def _ask(url: str, body: dict[str, Any] | None = None) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise FleetError(f"{url}: is no address of a service; give http://HOST:PORT")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  (just checked)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.read()
    except urllib.error.HTTPError as error:
        raise FleetError(f"{url}: {error.code}: {error.read()[:300].decode(errors='replace')}") from None
    except OSError as error:
        raise FleetError(f"{url}: does not answer: {error}") from None
