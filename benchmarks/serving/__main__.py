"""`python -m benchmarks.serving`: the service beside a plain FastAPI + torchdiffeq service, on one core each in turn.

The services run on the first core of this process, the clients on the second. Rounds of all workloads and both services
take turns; the table shows medians over the rounds and their range.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.serving.beside import in_turn
from benchmarks.serving.inside import engine_overhead, seconds_a_row
from benchmarks.serving.load import Round, run_round
from benchmarks.serving.servers import server
from benchmarks.serving.workloads import WORKLOADS
from models.checkpoint.loading import load

KINDS = ("pathline", "plain")
Found = dict[tuple[str, str], list[Round]]


def _measure(
    names: list[str], path: Path, cores: tuple[int, int], rounds: int, seconds: float
) -> tuple[Found, list[tuple[float, float]]]:
    """Rounds of all workloads at both services; and for c, what `in_turn` finds."""
    found: Found = {(kind, name): [] for kind in KINDS for name in names}
    core, own = cores
    os.sched_setaffinity(0, {own})
    with server("pathline", path, core) as ours, server("plain", path, core) as plain:
        for turn in range(rounds + 1):
            for name in names:
                for kind, url in (("pathline", ours), ("plain", plain)):
                    result = run_round(url, WORKLOADS[name], seconds if turn else 1.0, turn)
                    if turn:  # the first one warms up
                        found[kind, name].append(result)
            print(f"round {turn} of {rounds}", file=sys.stderr, flush=True)
        return found, in_turn(ours, load(path), cores) if "c" in names else []


def _milliseconds(rounds: list[Round], quantile: float, of: str | None = None) -> list[float]:
    times = [[s for label, s in each.latencies if of in (None, label)] for each in rounds]
    return [1000 * float(np.quantile(each, quantile)) for each in times if each]


def _spread(values: list[float], digits: int = 1) -> str:
    if not values:
        return "no answer"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _table(found: Found, names: list[str], row: float) -> str:
    lines = [
        "| workload | service | answers/s | p50 ms | p99 ms | times plain | to reach | roof, times plain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        plain = [each.rate for each in found["plain", name]]
        for kind in KINDS:
            rounds = found[kind, name]
            ratios = [each.rate / other for each, other in zip(rounds, plain, strict=True)]
            rows = sum(each.rows for each in rounds) / sum(len(each.latencies) for each in rounds)
            target = WORKLOADS[name].target
            ours = kind == "pathline" and target is not None
            lines.append(
                f"| {name}: {WORKLOADS[name].title} | {kind} | {_spread([each.rate for each in rounds])} "
                f"| {_spread(_milliseconds(rounds, 0.5))} | {_spread(_milliseconds(rounds, 0.99))} "
                f"| {_spread(ratios, 2)} | {target if ours else ''} "
                f"| {f'{1 / (rows * row) / median(plain):.1f}' if ours else ''} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; all where left out")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/moons/1"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one round")
    arguments = parser.parse_args()
    names, path = arguments.workloads or sorted(WORKLOADS), arguments.checkpoint.resolve()
    if not (path / "card.json").is_file():
        parser.error(f"there is no checkpoint in {path}; make it with: python -m training fit moons")
    cores = sorted(os.sched_getaffinity(0))
    load_before = os.getloadavg()[0]
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cores[0]})
    row, rows = seconds_a_row(load(path))
    overhead, rate, share = engine_overhead(path)
    found, turns = _measure(names, path, (cores[0], cores[-1]), arguments.rounds, arguments.seconds)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, one core for the service, one for the clients "
        f"({len(cores)} in all), load {load_before:.1f} at the start.\n\n{_table(found, names, row)}\n"
    )
    if "b" in names:
        for label in ("rk4-10", "dopri5"):
            print(f"b, pathline, {label}: p50 {_spread(_milliseconds(found['pathline', 'b'], 0.5, label))} ms")
    if "c" in names:
        asked, alone = (1000 * median(each) for each in zip(*turns, strict=True))
        more = 1000 * median(a - b for a, b in turns)
        print(
            f"c in turn: over HTTP p50 {asked:.1f} ms, in the process {alone:.1f} ms; median difference {more:.1f} ms"
        )
    print(f"the cheapest network row: {1e6 * row:.1f} microseconds, in a batch of {rows}")
    print(
        f"engine alone, 256 requests of workload e at once: {overhead:.0f} microseconds a request outside the network, "
        f"{rate:.0f} requests a second, {100 * share:.0f} % of the time inside the network"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
