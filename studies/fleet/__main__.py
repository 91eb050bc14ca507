"""``python -m studies.fleet``: scaling of bulk jobs, in a minute on an idle machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests import processes
from tests.processes import ROOT

SHARDS, ROWS, ROUNDS, GOAL = 24, 64 * 20, 2, 1.8


def rate(workers: int) -> float:
    """Return the rows per second of a job once all workers have made a shard, which leaves out process startup."""
    env = processes.environment(ROOT / "checkpoints", device="cpu") | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        job = ["moons", "--total", str(SHARDS * ROWS), "--seed", "5", "--solver", "rk4-20", "--shard-rows", str(ROWS)]
        command = [sys.executable, "-m", "fleet", "sample", *job, "--to", name, "--workers", str(workers), "--quiet"]
        subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        ended = sorted(path.stat().st_mtime for path in Path(name, "receipts").iterdir())
    assert len(ended) == SHARDS
    return (SHARDS - workers) * ROWS / (ended[-1] - ended[workers - 1])


def main() -> int:
    """Print the rates; return 0 if the goal is met."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for workers, measured in rates.items():
            measured.append(rate(workers))
    one, two = (max(measured) for measured in rates.values())
    met = two / one >= GOAL
    print(f"\nbulk: {SHARDS} shards of {ROWS} samples of moons by rk4-20, the best of {ROUNDS} runs in turn")
    print(f"{'1 worker':16} {one:9,.0f} samples/s")
    print(f"{'2 workers':16} {two:9,.0f} samples/s, {two / one:.2f} times as many (goal >= {GOAL:g}): ", end="")
    print("met" if met else "MISSED", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
