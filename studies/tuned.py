"""Tuned plans against stock solvers at equal NFE, as one table: `python -m studies.tuned CHECKPOINT...`.

Each checkpoint's own `plans.json` is measured on noise of a different seed than it was tuned with. The plans of the
first checkpoint are also tried on the others: with checkpoints that differ only in their training seed, that shows how
well a plan carries over to a network it was not tuned for.

`python -m studies.tuned --recipe circles` first trains a shipped recipe with three seeds and tunes the models, as
`training fit` and `training tune` do; what exists in its folder is used again, so a stopped run continues.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.plans import Plans
from selection.tuning import Calibration
from solvers import SolverSpec, integrate
from solvers.errors import SolverError
from solvers.tuned import TunedPlans
from training.config import load_recipe
from training.data_config import CONFIGS
from training.errors import TrainingError, UsageError
from training.fit import Options, fit
from training.tune import TuningOptions, paths_of, read_numbers, tune

STOCK = ("rk4", "ab2", "ab3", "ab4", "dpmpp_2m", "unipc2", "unipc3")
LEAST_PATHS = 16
"""Least number of paths to measure on."""

_CALLS = {"rk4": 4}
_SEED = 1_000_003


@dataclass(frozen=True)
class Measured:
    """The rows of one checkpoint at one guidance, by NFE, and what the unit of its errors is."""

    name: str
    unit: float
    rows: dict[int, tuple[str, ...]]


def error_of(target: Calibration, solver: str, tuned: TunedPlans | None = None) -> float:
    """Return the endpoint error of a solver, as a share of the spread."""
    every = slice(0, len(target.x0))

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        # With fixed steps no lane ends before the others, so rows are samples.
        return target.velocity(x, t, every)

    with torch.no_grad():
        x = integrate(velocity, target.x0, solver=solver, tuned=tuned).x
    return float((x - target.ends).flatten(1).square().sum(1).mean().sqrt()) / target.spread


def measured(
    checkpoint: Checkpoint, guidance: float | None, samples: int, others: TunedPlans | None, euler: str
) -> Measured:
    """Measure a checkpoint at each NFE that has a tuned solver: stock solvers, tuned grids, learned plan."""
    mine = checkpoint.plans or TunedPlans()
    target = Calibration.of(*paths_of(checkpoint, (1.0 if guidance is None else guidance,), _SEED, 0, samples))
    base = error_of(target, euler)

    def shown(solver: str, tuned: TunedPlans | None = None) -> str:
        return f"{error_of(target, solver, tuned) / base:#.3g}".removesuffix(".")

    rows: dict[int, tuple[str, ...]] = {}
    for nfe in sorted({SolverSpec.parse(text).steps or 0 for text in mine.texts}):
        cells = [_at_least(name, nfe, shown) for name in STOCK]
        grids = [text for text in mine.grids if SolverSpec.parse(text).steps == nfe]
        tried = [(shown(f"{text}/tuned", mine), text.split("-")[0]) for text in grids]
        best = min(tried, key=lambda each: float(each[0]), default=None)
        learned = shown(f"tuned-{nfe}", mine) if nfe in mine.plans else ""
        other = shown(f"tuned-{nfe}", others) if others is not None and nfe in others.plans else ""
        rows[nfe] = (*cells, f"{best[0]} (`{best[1]}`)" if best else "", learned, other)
    return Measured(_name(checkpoint, guidance), base, rows)


def _name(checkpoint: Checkpoint, guidance: float | None) -> str:
    """Return what tells checkpoints apart: name, seed and guidance, and the guidance that its plans were tuned for."""
    parts = [f"{checkpoint.card.name}, seed {checkpoint.card.seed}"]
    if guidance is not None:
        stored = Plans.read(checkpoint.path, checkpoint.card.weights_sha256)
        given = {_listed(plan.tuning.get("guidance")) for plan in stored.plans} if stored else {""}
        parts += [f"guidance {guidance:g}", f"tuned for {'; '.join(sorted(given))}"]
    return ", ".join(parts)


def _listed(strengths: Any) -> str:
    return ", ".join(f"{each:g}" for each in strengths or ())


def _at_least(name: str, nfe: int, shown: Callable[[str], str]) -> str:
    """Return the error of a method with `nfe` calls, or with the next possible number, which is shown."""
    calls = _CALLS.get(name, 1)
    steps = -(-nfe // calls)
    more = f" ({steps * calls})" if steps * calls > nfe else ""
    return shown(f"{name}-{steps}") + more


def lines(found: Sequence[Measured], euler: str) -> Iterator[str]:
    """Yield a Markdown table by NFE, and the unit of each checkpoint's errors."""
    head = ("model", "NFE", *(f"`{name}`" for name in STOCK), "best tuned grid", "learned", "learned for the first")
    for cells in (head, ("---",) * len(head)):
        yield f"| {' | '.join(cells)} |"
    for nfe in sorted({nfe for one in found for nfe in one.rows}):
        for one in found:
            if nfe in one.rows:
                yield f"| {' | '.join((one.name, str(nfe), *one.rows[nfe]))} |"
    yield ""
    for one in found:
        yield f"{one.name}: {euler} is off by {one.unit:.2g} of the spread"


def made(options: argparse.Namespace) -> list[Path]:
    """Train a shipped recipe with each seed, tune the models, and return their folders.

    Raises:
        TrainingError: the recipe does not exist, or training or tuning failed.
    """
    recipe = TuningOptions(
        nfe=read_numbers("nfe", options.nfe, int),
        methods=tuple(options.methods.split(",")),
        samples=options.calibration,
        guidance=read_numbers("guidance", options.guidance, float),
    )
    places = Options(options.out / "models", options.out / "runs", options.data_dir)
    folders = []
    for seed in read_numbers("seeds", options.seeds, int):
        own = {"seed": seed, "name": f"{options.recipe}-seed-{seed}"}
        folders.append(fit(load_recipe(CONFIGS / f"{options.recipe}.toml", own), places))
        tune(folders[-1], recipe)
    return folders


def main() -> None:
    """Measure the checkpoints and print a table."""
    parser = argparse.ArgumentParser(description="Compare tuned plans with stock solvers at equal NFE.")
    parser.add_argument("checkpoints", type=Path, nargs="*", metavar="CHECKPOINT")
    parser.add_argument("--samples", type=int, default=2000, metavar="N", help="paths to measure on (2000)")
    parser.add_argument("--guidance", default="1", metavar="G,...", help="guidance of conditional models (1)")
    parser.add_argument(
        "--euler", default="euler-200", metavar="SOLVER", help="solver with the error used as the unit (euler-200)"
    )
    parser.add_argument("--recipe", metavar="NAME", help="shipped recipe to train and tune first, such as circles")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,...", help="training seeds of the recipe (0,1,2)")
    parser.add_argument("--nfe", default="6,9", metavar="N,...", help="evaluations to tune for (6,9)")
    parser.add_argument("--methods", default="ab4", metavar="NAME,...", help="methods with tuned grids (ab4)")
    parser.add_argument("--calibration", type=int, default=1024, metavar="N", help="paths to tune on (1024)")
    parser.add_argument("--out", type=Path, default=Path("runs/tuned"), metavar="DIR", help="folder (runs/tuned)")
    place = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    parser.add_argument("--data-dir", type=Path, default=place, metavar="DIR", help="data files (mnist: IDX files)")
    options = parser.parse_args()
    if bool(options.checkpoints) == bool(options.recipe):
        parser.error("name checkpoints, or a shipped recipe with --recipe")
    try:
        print("", *lines(_found(options), options.euler), sep="\n")
    except (CheckpointError, SolverError, TrainingError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def _found(options: argparse.Namespace) -> list[Measured]:
    """Measure all checkpoints, after training and tuning those of a recipe.

    Raises:
        UsageError: there are too few paths, or a checkpoint has no tuned solvers.
        SolverError: the unit is not a solver.
        CheckpointError, TrainingError: a checkpoint cannot be loaded, trained, tuned or solved.
    """
    if options.samples < LEAST_PATHS:
        raise UsageError(f"--samples is {options.samples}; it must be at least {LEAST_PATHS}")
    SolverSpec.parse(options.euler)  # before hours of training, not after
    found = list[Measured]()
    guidances = read_numbers("guidance", options.guidance, float)
    first: TunedPlans | None = None
    for path in options.checkpoints or made(options):
        checkpoint = load(path)
        if checkpoint.plans is None:
            none = f"{path}: has no tuned solvers; make some with python -m training tune {path}"
            raise UsageError(checkpoint.plans_fault or none)
        condition = checkpoint.card.condition
        for guidance in guidances if condition is not None and condition.null else (None,):
            found.append(measured(checkpoint, guidance, options.samples, first, options.euler))
        first = checkpoint.plans if first is None else first
    return found


if __name__ == "__main__":
    main()
