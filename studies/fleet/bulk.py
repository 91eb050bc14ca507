"""Scaling of a bulk job: rows per second with one worker and with two, in turn."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from studies.fleet import running

SHARDS, ROWS, ROUNDS, GOAL = 24, 64 * 20, 2, 1.8


def rate(workers: int) -> float:
    """Return the rows per second of a job once all workers have made a shard, which leaves out process startup."""
    with tempfile.TemporaryDirectory() as name:
        job = ["moons", "--total", str(SHARDS * ROWS), "--seed", "5", "--solver", "rk4-20", "--shard-rows", str(ROWS)]
        command = [sys.executable, "-m", "fleet", "sample", *job, "--to", name, "--workers", str(workers), "--quiet"]
        subprocess.run(command, cwd=running.ROOT, env=running.environment(), check=True, stdout=subprocess.DEVNULL)
        ended = sorted(path.stat().st_mtime for path in Path(name, "receipts").iterdir())
    assert len(ended) == SHARDS
    return (SHARDS - workers) * ROWS / (ended[-1] - ended[workers - 1])


def table() -> bool:
    """Print the rates; return whether the goal is met."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for workers, rates in found.items():
            rates.append(rate(workers))
    one, two = (max(rates) for rates in found.values())
    met = two / one >= GOAL
    print(f"\nbulk: {SHARDS} shards of {ROWS} samples of moons by rk4-20, the best of {ROUNDS} runs in turn")
    print(f"{'1 worker':16} {one:9,.0f} samples/s")
    print(f"{'2 workers':16} {two:9,.0f} samples/s, {two / one:.2f} times as many (goal >= {GOAL:g}): ", end="")
    print("met" if met else "MISSED", flush=True)
    return met
