"""Tuned plans against stock solvers at equal NFE, as a table: `python -m benchmarks.tuned CHECKPOINT...`.

Each checkpoint's own `plans.json` is measured on noise of a different seed than it was tuned with. The plans of the
first checkpoint are also tried on the others: with checkpoints that differ only in their training seed, that shows how
well a plan carries over to a network it was not tuned for.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from models.checkpoint.loading import Checkpoint, load
from solvers import SolverSpec, integrate
from solvers.tuned import TunedPlans
from training.tune import target_of
from training.tuning import Target

STOCK = ("rk4", "ab2", "ab3", "ab4", "dpmpp_2m", "unipc2", "unipc3")
_CALLS = {"rk4": 4}
_SEED = 1_000_003


def error_of(target: Target, solver: str, tuned: TunedPlans | None = None) -> float:
    """Return the endpoint error of a solver, as a share of the spread."""
    every = slice(0, len(target.x0))

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        # With fixed steps no lane ends before the others, so rows are samples.
        return target.velocity(x, t, every)

    with torch.no_grad():
        x = integrate(velocity, target.x0, solver=solver, tuned=tuned).x
    return float((x - target.ends).flatten(1).square().sum(1).mean().sqrt()) / target.spread


def rows_of(checkpoint: Checkpoint, target: Target, others: TunedPlans | None, euler: str) -> list[tuple[str, ...]]:
    """Return a row for each NFE that has a tuned solver: stock solvers, tuned grids, learned plan."""
    mine = checkpoint.plans or TunedPlans()
    base = error_of(target, euler)

    def shown(solver: str, tuned: TunedPlans | None = None) -> str:
        return f"{error_of(target, solver, tuned) / base:.2f}"

    found = []
    for nfe in sorted({SolverSpec.parse(text).steps or 0 for text in mine.texts}):
        cells = [_at_least(name, nfe, shown) for name in STOCK]
        grids = [text for text in mine.grids if SolverSpec.parse(text).steps == nfe]
        best = min(((shown(f"{text}/tuned", mine), text.split("-")[0]) for text in grids), default=("", ""))
        learned = shown(f"tuned-{nfe}", mine) if nfe in mine.plans else ""
        other = shown(f"tuned-{nfe}", others) if others is not None and nfe in others.plans else ""
        found.append((f"{nfe}", *cells, " ".join(best).strip(), learned, other))
    return found


def _at_least(name: str, nfe: int, shown: Callable[[str], str]) -> str:
    """Return the error of a method with `nfe` calls, or with the next possible number, which is shown."""
    calls = _CALLS.get(name, 1)
    steps = -(-nfe // calls)
    more = f" ({steps * calls})" if steps * calls > nfe else ""
    return shown(f"{name}-{steps}") + more


def main() -> None:
    """Measure the checkpoints and print a table for each."""
    parser = argparse.ArgumentParser(description="Compare tuned plans with stock solvers at equal NFE.")
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--samples", type=int, default=512, metavar="N")
    parser.add_argument("--guidance", type=float, default=1.0, metavar="G", help="guidance of conditional models (1)")
    parser.add_argument(
        "--euler", default="euler-200", metavar="SOLVER", help="solver with the error used as the unit (euler-200)"
    )
    options = parser.parse_args()
    first: TunedPlans | None = None
    for path in options.checkpoints:
        checkpoint = load(path)
        target = target_of(checkpoint, (options.guidance,), _SEED, 0, options.samples)
        print(f"\n{path}: errors as shares of {options.euler}'s, {error_of(target, options.euler):.4f} of the spread\n")
        head = ("NFE", *(f"`{name}`" for name in STOCK), "best tuned grid", "learned", "learned for the first")
        print("\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head))))
        for row in rows_of(checkpoint, target, first, options.euler):
            print(f"| {' | '.join(row)} |", flush=True)
        first = checkpoint.plans if first is None else first


if __name__ == "__main__":
    main()
