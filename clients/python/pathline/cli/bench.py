"""A small load test: a number of concurrent requests for a number of seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathline._bar import Bar
from pathline._clients import AsyncClient
from pathline._request import draw_seed
from pathline._retry import RetryPolicy
from pathline.errors import PathlineError

_PERCENTILES = (50, 90, 95, 99, 100)
_AFTER_ERROR_S = 0.05  # so that a service that refuses everything is not flooded


@dataclass(frozen=True)
class LoadReport:
    """Results of a load test.

    Attributes:
        requests: How many requests succeeded.
        errors: How many failed, by kind.
        elapsed_s: Seconds from the first request to the last response.
        requests_per_s: Successful requests per second.
        samples_per_s: Samples per second.
        latency_s: Percentile -> seconds, as measured by the client; empty if no request succeeded.
    """

    requests: int
    errors: dict[str, int]
    elapsed_s: float
    requests_per_s: float
    samples_per_s: float
    latency_s: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {**vars(self), "latency_s": {f"p{key}": value for key, value in self.latency_s.items()}}

    def __str__(self) -> str:
        names = {key: f"p{key}" if key < 100 else "max" for key in self.latency_s}
        spread = ", ".join(f"{names[key]} {1000 * value:.1f}" for key, value in self.latency_s.items())
        failures = ", ".join(f"{count} {kind}" for kind, count in sorted(self.errors.items()))
        return (
            f"{self.requests} requests in {self.elapsed_s:.1f} s: {self.requests_per_s:.1f} requests/s, "
            f"{self.samples_per_s:.0f} samples/s\nlatency in ms: {spread or 'none'}\nerrors: {failures or 'none'}"
        )


async def measure(
    url: str | None,
    api_key: str | None,
    model: str,
    num_samples: int,
    *,
    concurrency: int,
    duration_s: float,
    seed: int | None,
    options: Mapping[str, Any],
    bar: Bar,
) -> LoadReport:
    """Run the load test; nothing is retried, so that errors show.

    Args:
        url: URL of the service.
        api_key: Its key, or None for the one in the environment.
        model: Name of the model.
        num_samples: Samples in each request.
        concurrency: Requests in flight at any time.
        duration_s: Seconds after which no new request begins.
        seed: Seed of all requests; each request uses different indices.
        options: Options of `sample`.
        bar: Shows the elapsed share of the seconds.

    Raises:
        PathlineError: The first request, a warm-up that is not counted, failed.
    """
    seed = draw_seed() if seed is None else seed
    begun_at = int(options.get("first_index", 0))
    latencies: list[float] = []
    errors: Counter[str] = Counter()
    sent = 0

    async with AsyncClient(url, api_key=api_key, retry=RetryPolicy(max_attempts=1)) as client:

        async def ask() -> None:
            nonlocal sent
            first, sent = begun_at + sent * num_samples, sent + 1
            members = {"trace": "none", **options, "first_index": first}
            await client.sample(model, num_samples, seed=seed, **members)  # type: ignore[arg-type]  (sample checks them)

        async def worker(end: float) -> None:
            while (start := time.perf_counter()) < end:
                try:
                    await ask()
                except PathlineError as error:
                    errors[type(error).__name__] += 1
                    await asyncio.sleep(_AFTER_ERROR_S)
                else:
                    latencies.append(time.perf_counter() - start)
                left = max(0.0, end - time.perf_counter())
                bar.update(1 - left / duration_s, left)

        await ask()
        start = time.perf_counter()
        await asyncio.gather(*(worker(start + duration_s) for _ in range(concurrency)))
        elapsed = time.perf_counter() - start
    spread = np.percentile(latencies, _PERCENTILES).tolist() if latencies else []
    rate = len(latencies) / elapsed
    return LoadReport(
        len(latencies),
        dict(errors),
        elapsed,
        rate,
        rate * num_samples,
        dict(zip(_PERCENTILES, spread, strict=bool(spread))),
    )
