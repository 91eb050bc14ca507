"""Tables in Markdown, each with the claim that it tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from studies.solvers.overhead import Overhead
from studies.solvers.precision import Curve, compare
from studies.solvers.rows import Rows
from studies.solvers.ticks import Tick

LIBRARIES = ("pathline", "scipy", "torchdiffeq", "torchode")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def _verdict(holds: bool) -> str:
    return "holds" if holds else "DOES NOT HOLD"


def precision(found: list[Curve]) -> str:
    """Return the NFE at equal errors."""
    rows, worst = [], []
    for problem, method, nfe, ratio in compare(found):
        cells = [f"{nfe[name]:.0f}" if name in nfe else "" for name in LIBRARIES]
        rows.append([problem, method, *cells, f"{ratio:.2f}" + (" (over)" if ratio > 1.15 else "")])
        worst.append((ratio, f"{problem}, {method}"))
    over = [f"{name}: {ratio:.2f}" for ratio, name in worst if ratio > 1.15]
    text = "Claim: at most 15 % more NFE than the best at the same method and error, on every problem: "
    text += _verdict(not over)
    text += f" ({len(worst) - len(over)} of {len(worst)} within; over: {'; '.join(over) or 'none'}).\n\n"
    return text + table(["problem", "method", *LIBRARIES, "ours / best"], rows)


def seconds(found: list[Curve]) -> str:
    """Return the CPU time per call, over all problems and tolerances."""
    rows = []
    for method in dict.fromkeys(c.method for c in found):
        cells = []
        for library in LIBRARIES:
            mine = [c for c in found if (c.method, c.library) == (method, library)]
            total = sum(c.seconds.sum() for c in mine), sum(c.nfe.sum() for c in mine)
            cells.append(f"{1e6 * total[0] / total[1]:.0f}" if mine else "")
        rows.append([method, *cells])
    return table(["method, microseconds per call", *LIBRARIES], rows)


def overhead(many: list[Overhead], one: list[Overhead]) -> str:
    """Return the time outside the network."""
    by_name = {(o.samples, o.name): o for o in [*many, *one]}
    ours, theirs = by_name[256, "pathline rk4"], by_name[256, "torchdiffeq rk4"]
    batch, diffeq = by_name[256, "pathline dopri5, batch"], by_name[256, "torchdiffeq dopri5"]
    at_256 = {o.name: o.outside for o in many if o.name.startswith("pathline")}
    at_1 = {o.name: o.outside for o in one if o.name.startswith("pathline")}
    pair = ours.milliseconds / theirs.milliseconds, batch.milliseconds_a_call / diffeq.milliseconds_a_call
    shown = "; ".join(f"{name} {value:.1%}" for name, value in at_256.items())
    text = (
        f"Claim: at 256 rows at most 5 % outside the network: {_verdict(max(at_256.values()) <= 0.05)} ({shown}).\n\n"
    )
    text += f"Claim: at 1 row below the network's own time: {_verdict(max(at_1.values()) < 1)}"
    text += f" (at most {max(at_1.values()):.0%}).\n\n"
    text += f"Claim: within 3 % of torchdiffeq at equal NFE: {_verdict(max(pair) <= 1.03)}"
    text += f" (rk4 {pair[0]:.3f}, dopri5 for each call {pair[1]:.3f}).\n\n"
    rows = [
        [o.samples, o.name, o.calls, f"{o.mean_rows:.0f}", f"{o.milliseconds:.1f}", f"{o.milliseconds_a_call:.3f}",
         f"{o.outside:.1%}"]
        for o in [*many, *one]
    ]  # fmt: skip
    head = ["samples", "solver", "calls", "rows per call", "ms", "ms per call", "outside / inside the network"]
    return text + table(head, rows)


def rows(found: list[Rows], equal: dict[str, float]) -> str:
    """Return the network rows of per-sample DOPRI5."""
    holds = all(value <= 0.6 for value in equal.values())
    shown = "; ".join(f"{name} {value:.0%}" for name, value in equal.items())
    text = (
        f"Claim: at most 60 % of torchode's rows at tolerance 1e-5 for the same error: {_verdict(holds)} ({shown}).\n\n"
    )
    return text + table(
        ["model", "samples", "solver", "calls", "rows", "error, geometric mean", "error, root mean square"],
        [[r.model, r.samples, r.solver, r.calls, r.rows, f"{r.error:.1e}", f"{r.rms:.1e}"] for r in found],
    )


def ticks(found: list[Tick]) -> str:
    """Compare a tick of mixed requests with a tick of one request."""
    mixed, single = found[0], found[1:]
    mean = math.fsum(t.total for t in single) / len(single)
    lanes = math.fsum(t.lanes for t in single) / len(single)
    ratio = mixed.total / mean
    text = "Claim: a tick of 1,000 mixed one-sample requests within 20 % of one 1,000-sample request: "
    text += _verdict(ratio <= 1.2)
    text += (
        f" (whole tick {ratio:.2f} times the mean of the six; outside the network {mixed.lanes / lanes:.2f} times).\n\n"
    )
    return text + table(
        ["1,000 lanes", "outside the network, ms", "network, ms", "tick, ms"],
        [[t.name, f"{t.lanes:.2f}", f"{t.network:.2f}", f"{t.total:.2f}"] for t in found],
    )
