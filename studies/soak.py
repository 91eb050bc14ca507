"""``make soak``: ten minutes of mixed load against a real service on this machine.

Clients request random solvers, steps, tolerances and sizes; some requests have deadlines that cannot be met, and some
clients disconnect half-way. Every complete answer is compared bit for bit with the first answer to the same request. At
the end no job or lane may be left, and memory must not have grown by more than a tenth since the first minute.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from pathline import Client, DeadlineExceeded, RetryPolicy, Unavailable

from models.architectures.analytic import Gaussian, Mixture
from models.checkpoint.saving import save
from models.decoder import Decoder
from tests.processes import SERVICE, Running, running, stop

SOLVES: list[dict[str, object]] = [
    {"solver": "euler", "steps": 50},
    {"solver": "midpoint", "steps": 40},
    {"solver": "rk4", "steps": 10},
    {"solver": "ab3", "steps": 30, "start": "rk"},
    {"solver": "dopri5"},
    {"solver": "tsit5", "rtol": 1e-3, "atol": 1e-3},
    {"solver": "bosh3", "rtol": 1e-3, "atol": 1e-3, "error_control": "batch"},
]


@contextmanager
def serve() -> Iterator[Running]:
    """Run a service with the analytic models on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("gaussian", Gaussian()), ("mixture", Mixture())):
            save(folder, name, model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
        environment = {**os.environ, "PATHLINE_MODELS_DIR": folder, "PATHLINE_PORT": "0"}
        with running(SERVICE, environment) as service:
            yield service


def resident_mib(process: int) -> float:
    """Return the resident memory of a process (Linux)."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found.group(1)) / 1024 if found else float("nan")


class Load:
    """Clients that run in threads until a deadline; `counts` has the outcomes."""

    def __init__(self, url: str, end: float) -> None:
        self.url, self.end = url, end
        self.counts: Counter[str] = Counter()
        self.first: dict[tuple[str, int, int, int], np.ndarray] = {}

    def run(self, seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311  (load, not secrets)
        with Client(self.url, retry=RetryPolicy(max_attempts=1)) as client:
            while time.monotonic() < self.end:
                try:
                    self.one(client, draw)
                except (DeadlineExceeded, Unavailable) as refusal:
                    self.counts[type(refusal).__name__] += 1

    def one(self, client: Client, draw: random.Random) -> None:
        key = (
            draw.choice(["gaussian", "mixture"]),
            draw.randrange(len(SOLVES)),
            draw.choice([1, 3, 64]),
            draw.randrange(9),
        )
        model, solve, samples, seed = key
        kind = draw.random()
        if kind < 0.1:
            body = {"model": model, "num_samples": 5000, "seed": seed, **SOLVES[solve]}
            try:
                httpx.post(f"{self.url}/v1/sample", json=body, timeout=0.05)
            except httpx.TimeoutException:
                self.counts["hung up"] += 1
            return
        options = {"timeout_s": 0.02} if kind < 0.2 else {}
        result = client.sample(model, num_samples=samples, seed=seed, **SOLVES[solve], **options)  # pyright: ignore[reportArgumentType]
        same = np.array_equal(self.first.setdefault(key, result.samples), result.samples)
        self.counts["answered" if same else "DIFFERENT BITS"] += 1


def main() -> int:
    """Run the load and print the outcomes; return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with serve() as service:
        load = Load(service.url, time.monotonic() + options.seconds)
        threads = [threading.Thread(target=load.run, args=(seed,)) for seed in range(options.clients)]
        for thread in threads:
            thread.start()
        time.sleep(min(60.0, options.seconds / 2))
        early = resident_mib(service.process.pid)
        for thread in threads:
            thread.join()
        time.sleep(1)
        metrics = httpx.get(f"{service.url}/metrics").text
        left = re.findall(r"^pathline_active_(jobs|lanes) (.*)$", metrics, re.MULTILINE)
        late = resident_mib(service.process.pid)
        code = stop(service.process)
    print(f"soak: {dict(load.counts)}; left over {dict(left)}; memory {early:.0f} -> {late:.0f} MiB; exit code {code}")
    clean = all(float(value) == 0 for _, value in left) and code == 0 and late < 1.1 * early
    return 0 if clean and not load.counts["DIFFERENT BITS"] and load.counts["answered"] else 1


if __name__ == "__main__":
    sys.exit(main())
