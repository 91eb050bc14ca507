"""A small load test: a number of concurrent requests for a number of seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathline._bar import Bar
from pathline._clients import AsyncClient
from pathline._request import chosen_seed
from pathline._retry import RetryPolicy
from pathline.errors import PathlineError

_PERCENTILES = (50, 90, 95, 99, 100)
_AFTER_ERROR_S = 0.05  # so that a service that refuses everything is not flooded


def text_of(report: Mapping[str, Any]) -> str:
    """Return a report of `measure` as text."""
    latencies = report["latency_s"].items()
    spread = ", ".join(f"{'max' if name == 'p100' else name} {1000 * value:.1f}" for name, value in latencies)
    failures = ", ".join(f"{count} {kind}" for kind, count in sorted(report["errors"].items()))
    return (
        f"{report['requests']} requests in {report['elapsed_s']:.1f} s: {report['requests_per_s']:.1f} requests/s, "
        f"{report['samples_per_s']:.0f} samples/s\nlatency in ms: {spread or 'none'}\nerrors: {failures or 'none'}"
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
) -> dict[str, Any]:
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

    Returns:
        `requests` that succeeded, those that failed by kind as `errors`, `elapsed_s` from the first request to the last
        response, `requests_per_s` and `samples_per_s` of those that succeeded, and `latency_s` by percentile (p50, ...)
        as measured by the client, empty if none succeeded.

    Raises:
        PathlineError: The first request, a warm-up that is not counted, failed.
    """
    seed = chosen_seed(seed)
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
    return {
        "requests": len(latencies),
        "errors": dict(errors),
        "elapsed_s": elapsed,
        "requests_per_s": rate,
        "samples_per_s": rate * num_samples,
        "latency_s": {f"p{percentile}": value for percentile, value in zip(_PERCENTILES, spread, strict=False)},
    }
