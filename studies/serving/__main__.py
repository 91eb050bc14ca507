"""`python -m studies.serving`: the service compared with others that serve the same model, in turn on one core.

The others are a plain FastAPI + torchdiffeq service and, after `make bench-peers`, LitServe and Triton. The services
run on the first core of this process, the clients on the last. Workloads and services take turns in each round; the
tables show medians over the rounds and their range. The processor time per answer is read from the clocks of the
threads, so other load on the machine hardly affects it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import torch

from models.checkpoint.loading import load
from studies.serving.beside import in_turn
from studies.serving.inside import engine_overhead, seconds_a_row, tick_overhead
from studies.serving.load import Round, run_round
from studies.serving.servers import KINDS, PEERS, server
from studies.serving.workloads import WORKLOADS

Found = dict[tuple[str, str], list[Round]]


def _measure(
    names: list[str], kinds: list[str], path: Path, cores: tuple[int, int], rounds: int, seconds: float
) -> tuple[Found, list[tuple[float, float]]]:
    """Return the rounds of all workloads on all services and, for workload c, the results of `in_turn`."""
    found: Found = {(kind, name): [] for kind in kinds for name in names}
    core, own = cores
    os.sched_setaffinity(0, {own})
    with ExitStack() as stack:
        services = {kind: stack.enter_context(server(kind, path, core)) for kind in kinds}
        for turn in range(rounds + 1):
            for name in names:
                for kind, service in services.items():
                    result = run_round(service, WORKLOADS[name], seconds if turn else 1.0, turn)
                    if turn:  # the first one warms up
                        found[kind, name].append(result)
            print(f"round {turn} of {rounds}", file=sys.stderr, flush=True)
        return found, in_turn(services["pathline"].url, load(path), cores) if "c" in names else []


def _milliseconds(rounds: list[Round], quantile: float, of: str | None = None) -> list[float]:
    times = [[s for label, s in each.latencies if of in (None, label)] for each in rounds]
    return [1000 * float(np.quantile(each, quantile)) for each in times if each]


def _spread(values: list[float], digits: int = 1) -> str:
    if not values:
        return "no answer"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _table(found: Found, names: list[str], kinds: list[str], row: float) -> str:
    """Return the comparison: answers and useful network rows per second, latencies, processor time."""
    lines = [
        "| workload | service | answers/s | rows/s | p50 ms | p99 ms | rows/s, times plain | CPU ms per answer "
        "| CPU, times plain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        plain = found["plain", name]
        for kind in kinds:
            rounds = found[kind, name]
            rows = [each.rows / each.seconds for each in rounds]
            beside = [own / (each.rows / each.seconds) for own, each in zip(rows, plain, strict=True)]
            costs = [each.cost / own.cost for own, each in zip(rounds, plain, strict=True)]
            lines.append(
                f"| {name}: {WORKLOADS[name].title} | {kind} | {_spread([each.rate for each in rounds])} "
                f"| {_spread(rows, 0)} | {_spread(_milliseconds(rounds, 0.5))} "
                f"| {_spread(_milliseconds(rounds, 0.99))} "
                f"| {_spread(beside, 2)} | {_spread([1000 * each.cost for each in rounds], 2)} | {_spread(costs, 2)} |"
            )
    return "\n".join([*lines, "", _roof(found, names, row)])


def _roof(found: Found, names: list[str], row: float) -> str:
    """Return where the processor time of an answer goes, and the most that faster Python code could gain."""
    lines = [
        "| workload | goal, times plain | roof | of the roof | network ms | engine's thread ms | HTTP's thread ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        rounds, goal = found["pathline", name], WORKLOADS[name].target
        answers = sum(len(each.latencies) for each in rounds)
        network = row * sum(each.rows for each in rounds) / answers
        cost = median(each.cost for each in rounds)
        threads = [1000 * sum(each.clocks[k] for each in rounds) / answers for k in (0, 1)]
        plain = median(each.cost for each in found["plain", name])
        lines.append(
            f"| {name} | {goal or ''} | {plain / network:.1f} | {100 * network / cost:.0f} % "
            f"| {1000 * network:.2f} | {threads[0]:.2f} | {threads[1]:.2f} |"
        )
    return "\n".join(lines)


def _light(found: Found, kinds: list[str]) -> str:
    """Return how long light requests of workload b wait beside heavy ones."""
    lines = ["| b | p50 ms | p99 ms |", "| --- | --- | --- |"]
    for kind in kinds:
        for label in ("rk4-10", "dopri5"):
            rounds = found[kind, "b"]
            p50, p99 = (_spread(_milliseconds(rounds, quantile, label)) for quantile in (0.5, 0.99))
            lines.append(f"| {kind}, {label} | {p50} | {p99} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m studies.serving", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"{', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/moons/1"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds per round (default: 6)")
    parser.add_argument(
        "--beside", nargs="*", default=None, help=f"{', '.join(KINDS)} (default: all installed but bare)"
    )
    arguments = parser.parse_args()
    names, path = arguments.workloads or sorted(WORKLOADS), arguments.checkpoint.resolve()
    if not (path / "card.json").is_file():
        parser.error(f"there is no checkpoint in {path}; make it with: python -m training fit moons")
    wanted = KINDS.keys() - {"bare"} if arguments.beside is None else {"pathline", "plain", *arguments.beside}
    kinds = [kind for kind in KINDS if kind in wanted and KINDS[kind].python.is_file()]
    if not PEERS.is_file():
        print("LitServe and Triton are left out; install them with make bench-peers", file=sys.stderr)
    cores = sorted(os.sched_getaffinity(0))
    load_before = os.getloadavg()[0]
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cores[0]})
    row, rows = seconds_a_row(load(path))
    alone = {concurrent: engine_overhead(path, row, concurrent) for concurrent in (32, 256)}
    tick = tick_overhead(path)
    found, turns = _measure(names, kinds, path, (cores[0], cores[-1]), arguments.rounds, arguments.seconds)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, one core for the service, one for the clients "
        f"({len(cores)} in all), load {load_before:.1f} at the start.\n\n{_table(found, names, kinds, row)}\n"
    )
    if "b" in names:
        print(f"{_light(found, kinds)}\n")
    if "c" in names:
        over_http, in_process = (1000 * median(each) for each in zip(*turns, strict=True))
        more = 1000 * median(a - b for a, b in turns)
        print(
            f"c in turn: over HTTP p50 {over_http:.1f} ms, in the process {in_process:.1f} ms; median difference "
            f"{more:.1f} ms"
        )
    print(f"the cheapest network row: {1e6 * row:.1f} microseconds, in a batch of {rows}")
    for concurrent, (overhead, share) in alone.items():
        print(
            f"engine's thread without HTTP, {concurrent} requests of workload e at once: {overhead:.0f} microseconds "
            f"of processor time per request outside the network, {100 * share:.0f} % of its time inside"
        )
    print(f"a tick of 64 lanes, cold: {tick:.0f} microseconds of processor time outside the network")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
