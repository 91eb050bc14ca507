"""Whether promises hold on fresh noise, counted: `python -m studies.promises CHECKPOINT...`.

For each budget, the solver that the service would choose from the checkpoint's frontier draws samples from noise of
another seed. Counted is how many of them end within the promised error of the exact ends of their paths.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.checkpoint.loading import load
from models.field import Field, solve
from models.noise import noise
from selection.choice import BudgetLimits, Evidence, NoneFits, choose
from selection.error import Ends, arrivals, exact_ends
from selection.frontier import percent, read_frontier
from solvers import SolverSpec

BUDGETS = (0.05, 0.01, 0.002)
SAMPLES, SEED = 10_000, 20_261_130
_PART = 2_000  # paths at a time


@dataclass(frozen=True)
class Kept:
    """One promise and what became of it; `within` of `samples` kept it."""

    model: str
    budget: float
    solver: str
    nfe: int
    promised: float
    within: int
    samples: int


def kept(path: Path, budgets: tuple[float, ...], samples: int, seed: int = SEED) -> list[Kept]:
    """Count how many fresh samples keep the promise for each budget.

    Raises:
        SystemExit: the checkpoint has no frontier, or takes conditions.
    """
    checkpoint = load(path)
    frontier = read_frontier(path, checkpoint.card)
    curve = frontier and frontier.curve(None)
    if curve is None or checkpoint.card.conditions:
        raise SystemExit(f"{path}: has no frontier, or takes conditions; measure it: python -m models measure {path}")
    x0 = noise(seed, 0, samples, checkpoint.card.event_of(), checkpoint.dtype)
    field, parts = Field(checkpoint.velocity), x0.split(_PART)
    ends = [Ends(exact_ends(field, part), curve.spread) for part in parts]
    rows = list[Kept]()
    for budget in budgets:
        try:
            point = choose([Evidence(curve)], BudgetLimits(max_error=budget))[0].point
        except NoneFits as error:
            print(f"{path}: {error}")
            continue
        spec, within = SolverSpec.parse(point.solver), 0
        for part, end in zip(parts, ends, strict=True):
            solution = solve(field, part, spec, plans=checkpoint.plans)
            errors = end.errors(arrivals(solution.x, solution.status))
            within += int(np.count_nonzero(errors <= point.p95_high))
        rows.append(Kept(checkpoint.card.name, budget, point.solver, point.nfe_most, point.p95_high, within, samples))
    return rows


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description="Count how many fresh samples keep what was promised of them.")
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--samples", type=int, default=SAMPLES, metavar="N", help="fresh samples (default: 10000)")
    options = parser.parse_args()
    head = ("model", "budget", "solver", "NFE", "promised", "fresh samples within it")
    print("\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head))))
    for path in options.checkpoints:
        for row in kept(path, BUDGETS, options.samples):
            cells = (row.model, percent(row.budget), f"`{row.solver}`", str(row.nfe), percent(row.promised))
            print(f"| {' | '.join(cells)} | {100 * row.within / row.samples:.2f} % of {row.samples:,} |", flush=True)


if __name__ == "__main__":
    main()
