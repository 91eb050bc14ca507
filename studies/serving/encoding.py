"""``python -m studies.serving.encoding``: how fast responses are encoded in the process, by format.

Nothing is sent: each piece is copied once, as into a socket, and dropped. Each format is encoded once to warm up, then
for about two seconds; the table shows the bytes encoded per second, with their median and range over rounds.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from service.responses.arrays import ENCODERS, ArrayResponse, Encoder

_GOALS = {"application/x-npy": 1000.0, "application/x-npz": 200.0}  # MB/s
_SAMPLES = (4_000_000, 2)  # float32: 32 MB
_DRAWN = (4_096, 28, 28)
_SECONDS = 2.0


def answer(shape: tuple[int, ...]) -> ArrayResponse:
    """Return a response with samples of the given shape, (n, *event)."""
    samples = np.random.default_rng(0).random(shape, dtype=np.float32)
    n = len(samples)
    arrays = {"samples": samples, "nfe": np.full(n, 80), "t": np.ones(n), "status": np.full(n, "success")}
    return ArrayResponse({"model": "benchmark", "samples": samples, "latency": {}}, arrays, elapsed=lambda: 0.0)


def rates(encoder: Encoder, given: ArrayResponse) -> tuple[list[float], float]:
    """Encode for two seconds; return the MB per second of each round, and the longest time for one piece in ms."""
    found, longest, end = [], 0.0, time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(found) < 3:
        begun = before = time.perf_counter()
        size = 0
        for piece in encoder.encode(given):
            size += len(bytes(piece)) if isinstance(piece, memoryview) else len(bytearray(piece))
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
        found.append(size / 1e6 / (time.perf_counter() - begun))
    return found, longest * 1e3


def main() -> None:
    """Print the table."""
    print("| format | samples | MB/s, median (min to max) | longest piece | goal |")
    print("|---|---|---|---|---|")
    for media, encoder in ENCODERS.items():
        given = answer(_DRAWN if encoder.slow else _SAMPLES)
        list(encoder.encode(given))
        found, longest = rates(encoder, given)
        goal = f"{_GOALS[media]:,.0f} MB/s" if media in _GOALS else ""
        middle = f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
        shape = "x".join(map(str, given.arrays["samples"].shape))
        print(f"| {media} | {shape} | {middle} | {longest:.1f} ms | {goal} |")


if __name__ == "__main__":
    main()
