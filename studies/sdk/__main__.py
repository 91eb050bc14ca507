"""``python -m studies.sdk URL``: overhead of the SDK over plain httpx, with requests to a running service in turn.

Both request the same samples as npz over a persistent connection and read them with NumPy. The overhead is the median
of the pairwise differences, also shown as a share of httpx's median.
"""

import io
import statistics
import sys
import time

import httpx
import numpy as np
from pathline import Client

ROUNDS = 300


def main(url: str, model: str = "moons", num_samples: int = 256) -> None:
    body = {"model": model, "num_samples": num_samples, "seed": 0, "solver": "rk4", "steps": 20, "trace": "none"}
    raw_s, sdk_s = [], []
    with Client(url) as client, httpx.Client(base_url=url, timeout=60) as raw:

        def plain() -> np.ndarray:
            answer = raw.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
            answer.raise_for_status()
            with np.load(io.BytesIO(answer.content)) as arrays:
                return arrays["samples"]

        def ours() -> np.ndarray:
            return client.sample(model, num_samples, seed=0, solver="rk4", steps=20, trace="none").samples

        np.testing.assert_array_equal(plain(), ours())
        for number in range(ROUNDS):
            for call, times in ((plain, raw_s), (ours, sdk_s))[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
    base = statistics.median(raw_s)
    extra = statistics.median(ours - plain for ours, plain in zip(sdk_s, raw_s, strict=True))
    print(f"{ROUNDS} pairs, {num_samples} samples of {model} by rk4-20")
    print(f"httpx {1000 * base:.2f} ms, pathline {1000 * statistics.median(sdk_s):.2f} ms (medians)")
    print(f"overhead {1000 * extra:+.3f} ms, {100 * extra / base:+.1f} %")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    try:
        main(address)
    except httpx.ConnectError:
        sys.exit(f"nothing answers at {address}: start a service (make serve), or give its address")
