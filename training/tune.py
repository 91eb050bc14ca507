"""`python -m training tune`: plans and grids learned for one checkpoint, stored with its weights in `plans.json`."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor
from tqdm import tqdm

from models.checkpoint.bound import BoundFileError
from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.plans import Plans, StoredPlan
from models.field import Field
from models.noise import noise
from selection.candidates import TUNED_NFE
from selection.error import Ends, NoErrors, exact_ends
from selection.frontier import is_tuned, percent, read_frontier
from selection.measure import add_tuned, measure, measure_solver
from selection.tuning import Calibration, stock_weights, tune_grid, tune_plan
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.tuned import TUNED, TunedPlan, TunedPlans
from training.errors import TrainingError, UsageError
from training.solving import open_checkpoint

METHODS = ("ab2", "ab3", "ab4")
"""Stock methods that get tuned grids; learned plans start from the best of them."""

LEAST_NFE, MAX_NFE = 2, 32
MEASURE_S = 60.0
"""Seconds for the frontier of a checkpoint without one; tuned solvers come first."""

TUNER = 3
"""Version of the tuner: raised when the same options give other plans. Plans of another version are tuned again."""

VALIDATED = 512
"""Number of validation paths; their noise is far from that of calibration in the same seed's stream."""

_FAR = 1 << 40
_TIGHT = 1e-6


@dataclass(frozen=True)
class TuningOptions:
    """Options of tuning.

    Attributes:
        nfe: numbers of evaluations; for each one, a plan is learned and the grids of `methods` are tuned.
        methods: stock methods with one evaluation per step.
        samples: number of calibration paths.
        seed: seed of their noise.
        iterations: limit on the iterations for a learned plan.
        guidance: guidance strengths, assigned in turn to the paths of a conditional model.
    """

    nfe: tuple[int, ...] = TUNED_NFE
    methods: tuple[str, ...] = METHODS
    samples: int = 512
    seed: int = 0
    iterations: int = 60
    guidance: tuple[float, ...] = (1.0, 2.0, 4.0)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UsageError: an option is out of range; the message names it.
        """
        if not self.nfe or not all(LEAST_NFE <= nfe <= MAX_NFE for nfe in self.nfe):
            raise UsageError(f"--nfe is {_text(self.nfe)}; each must be from {LEAST_NFE} to {MAX_NFE}")
        for method in self.methods:
            try:
                entry = SolverSpec(method, 4).method
            except SolverError as error:
                raise UsageError(f"--methods: {error}") from None
            if not entry.multistep_order or entry.learned:
                raise UsageError(
                    f"--methods: {method} does not take one evaluation per step; use multistep methods, e.g. ab4"
                )
        if not self.methods:
            raise UsageError("--methods is empty; name at least one, e.g. ab4")
        for name, least, most in (("samples", 16, 100_000), ("seed", 0, 2**63 - 1), ("iterations", 1, 100_000)):
            if not least <= (value := getattr(self, name)) <= most:
                raise UsageError(f"--{name} is {value}; it must be from {least} to {most}")
        if not self.guidance or not np.isfinite(self.guidance).all():
            raise UsageError(f"--guidance is {_text(self.guidance)}; it must be finite numbers")

    def solvers(self) -> Iterator[tuple[str, list[SolverSpec]]]:
        """Yield each solver to tune and the stock solvers that it starts from; grids come before their plan."""
        for nfe in self.nfe:
            specs = [SolverSpec(method, nfe) for method in self.methods]
            yield from ((f"{spec}/{TUNED}", [spec]) for spec in specs)
            yield f"{TUNED}-{nfe}", specs

    def facts(self, solver: str, guided: bool) -> dict[str, Any]:
        """Return what determines a tuned solver, to be stored with it: the options and the version of the tuner."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("samples", "seed", "iterations")}
        facts["tuner"] = TUNER
        if solver.startswith(f"{TUNED}-"):
            facts["methods"] = list(self.methods)  # it starts from the best of their grids
        return facts | ({"guidance": list(self.guidance)} if guided else {})


def tune(path: Path, options: TuningOptions, force: bool = False) -> Plans:
    """Tune the solvers of some options that are missing or out of date.

    The file is replaced after each, so a stop loses at most one. Until its successor is ready, an old plan stays.

    Args:
        path: the folder of a version.
        options: what to tune, and how.
        force: tune existing solvers again.

    Raises:
        TrainingError: the checkpoint cannot be loaded or solved, has free axes or named conditions, or the file cannot
            be written.
    """
    checkpoint = open_checkpoint(path, "tune for")
    if why := checkpoint.card.field.no_path:
        raise TrainingError(f"{path} {why} for a plan to approximate; sample it with steps of euler")
    condition = checkpoint.card.condition
    guided = condition is not None and condition.nullable
    facts = {text: options.facts(text, guided) for text, _ in options.solvers()}
    stored = _before(checkpoint)
    current = set() if force else _current(path, facts, stored)
    missing = {text: specs for text, specs in options.solvers() if text not in current}
    if not missing:
        print(f"{path}: everything is tuned already; use --force to tune it again", file=sys.stderr)
        return _plans(checkpoint, stored)
    began = time.perf_counter()
    paths = Calibration.of(*paths_of(checkpoint, options.guidance, options.seed, 0, options.samples))
    validation = paths_of(checkpoint, options.guidance, options.seed, _FAR, VALIDATED)

    def p95(solver: str, plans: TunedPlans) -> float:
        point = measure_solver(solver, *validation, plans)
        if point is None:
            raise TrainingError("more than 5 % of the validation paths diverge, so no plan can be judged")
        return point.p95_high

    print(f"{options.samples + VALIDATED} tight paths in {time.perf_counter() - began:.0f} s")
    for text, specs in missing.items():
        began = time.perf_counter()
        with _bar(text) as tell:
            plan = _tuned(text, specs, options.iterations, stored, paths, p95, tell)
        libraries = {module.__name__: str(module.__version__) for module in (np, scipy, torch)}
        stored[text] = plan.model_copy(update={"tuning": facts[text], "libraries": libraries})
        line = f"{text:<14} keeps {percent(plan.error)} of the spread, before tuning {percent(plan.start_error)}"
        print(f"{line}; {time.perf_counter() - began:.0f} s", flush=True)
        try:
            _plans(checkpoint, stored).write(path)
        except BoundFileError as error:
            raise TrainingError(str(error)) from None
    return _plans(checkpoint, stored)


def _plans(checkpoint: Checkpoint, stored: dict[str, StoredPlan]) -> Plans:
    return Plans(weights_sha256=checkpoint.card.weights_sha256, plans=tuple(stored.values()))


def measure_tuned(path: Path) -> None:
    """Add the tuned solvers to the frontier of a checkpoint, or measure a whole frontier; print the result.

    If that fails, print the command that measures it: a budget chooses among measured solvers only.

    Raises:
        TrainingError: the checkpoint cannot be loaded, or is not usable.
    """
    again = f"python -m training evaluate {path}"
    try:
        checkpoint = load(path)
        try:
            before = read_frontier(path, checkpoint.card)
        except BoundFileError as error:
            print(f"{error}", file=sys.stderr)
            before = None
        after = measure(checkpoint, seconds=MEASURE_S) if before is None else add_tuned(checkpoint, before)
        if after is None:
            print(f"{path}: budgets ignore the tuned solvers until the frontier is measured again: {again}")
            return
        written = after.write(path)
    except (CheckpointError, NoErrors) as error:
        raise TrainingError(f"tune: the plans are stored, but {error}") from None
    tuned = {point.solver for curve in after.curves for point in curve.points if is_tuned(point.solver)}
    print(f"{len(tuned)} tuned solvers measured for budgets, written to {written}")


def _before(checkpoint: Checkpoint) -> dict[str, StoredPlan]:
    """Return the existing plans by solver."""
    try:
        plans = Plans.read(checkpoint.path, checkpoint.card.weights_sha256)
    except BoundFileError as error:
        print(f"{error}; replacing them", file=sys.stderr)
        return {}
    return {} if plans is None else {plan.solver: plan for plan in plans.plans}


def _current(path: Path, facts: dict[str, dict[str, Any]], stored: dict[str, StoredPlan]) -> set[str]:
    """Return the solvers that were tuned with these facts; print why others were not.

    Plans of other solvers stay. Those of another tuner are named.
    """
    outdated: dict[str, list[str]] = {}
    for text, plan in stored.items():
        if text in facts and plan.tuning != facts[text]:
            outdated.setdefault(_changes(plan.tuning, facts[text]), []).append(text)
    for why, solvers in outdated.items():
        print(f"{path}: tuning {', '.join(solvers)} again: {why}", file=sys.stderr)
    if old := [text for text, plan in stored.items() if text not in facts and plan.tuning.get("tuner") != TUNER]:
        stay = f"{', '.join(old)} stay as an earlier tuner left them; to improve them, name their NFE in --nfe"
        print(f"{path}: {stay}", file=sys.stderr)
    return {text for text in facts if text in stored and stored[text].tuning == facts[text]}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the facts that differ, as a phrase."""
    pairs = ((name, _text(before.get(name)), _text(now.get(name))) for name in sorted({*before, *now}))
    return "; ".join(f"{name} {old}, now {new}" for name, old, new in pairs if old != new)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else "not given" if value is None else f"{value}"


def _tuned(
    text: str,
    specs: list[SolverSpec],
    iterations: int,
    stored: dict[str, StoredPlan],
    paths: Calibration,
    p95: Callable[[str, TunedPlans], float],
    tell: Callable[[float], None],
) -> StoredPlan:
    """Tune one solver that starts from stock ones; `p95` gives the promised error of a solver on validation paths."""
    if text.endswith(f"/{TUNED}"):
        plan = TunedPlan(tune_grid(paths, specs[0], max(1, iterations // 4), tell))
        plans = TunedPlans(grids={str(specs[0]): plan})
    else:
        grids = [np.array(stored[f"{spec}/{TUNED}"].times) for spec in specs]
        starts = [(times, stock_weights(spec, times)) for spec, times in zip(specs, grids, strict=True)]
        plan = tune_plan(paths, *min(starts, key=lambda start: paths.error(*start)), iterations, tell)
        plans = TunedPlans({len(plan.times) - 1: plan})
    rows = None if plan.weights is None else enumerate(plan.weights.tolist())
    return StoredPlan(
        solver=text,
        times=tuple(plan.times.tolist()),
        weights=rows and tuple(tuple(row[: n + 1]) for n, row in rows),
        x0_weights=None if plan.x0_weights is None else tuple(plan.x0_weights.tolist()),
        error=p95(text, plans),
        start_error=min(p95(str(spec), plans) for spec in specs),
    )


def paths_of(
    checkpoint: Checkpoint, guidance: Sequence[float], seed: int, first: int, samples: int
) -> tuple[Field, Tensor, Ends]:
    """Return the velocity of a checkpoint, noise (samples, *event) and the exact ends of their paths.

    Conditions and guidance strengths go through all of their pairs in turn.

    Args:
        checkpoint: the model.
        guidance: strengths, for a conditional model with a trained null.
        seed, first: seed and first index of the noise.
        samples: number of paths.

    Raises:
        TrainingError: a path did not reach t = 1.
    """
    card, dtype = checkpoint.card, checkpoint.dtype
    x0 = noise(seed, first, samples, card.event_of(), dtype)
    condition, field = card.condition, Field(checkpoint.velocity, takes=checkpoint.network_conditions)
    if condition is not None:
        field = replace(field, conditions=condition.examples(samples, dtype, nulls=False))
        if condition.nullable:
            # Classes repeat in turn; strengths must not repeat with them.
            pairs = torch.from_numpy(np.random.default_rng(0).permutation(samples))
            strengths = torch.tensor(np.resize(guidance, samples), dtype=dtype)[pairs]
            field = replace(field, guidance=strengths)
    ends = exact_ends(field, x0, _TIGHT, progress=sys.stderr.isatty())
    if not ends.isfinite().all():
        raise TrainingError(f"{checkpoint.path}: some paths do not reach t = 1, so it cannot be tuned")
    try:
        return field, x0, Ends.of(ends)
    except NoErrors as error:
        raise TrainingError(f"{checkpoint.path}: {error}") from None


@contextmanager
def _bar(text: str) -> Iterator[Any]:
    """Show a bar of solves with the error, on a terminal."""
    with tqdm(desc=text, unit="solve", disable=not sys.stderr.isatty(), leave=False, file=sys.stderr) as bar:

        def tell(error: float) -> None:
            bar.set_postfix_str(f"error {error:.4f}", refresh=False)
            bar.update()

        yield tell


def read_numbers(name: str, text: str, kind: type) -> tuple[Any, ...]:
    """Parse numbers separated by commas.

    Raises:
        UsageError: for anything else.
    """
    try:
        return tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--{name} is {text!r}; use numbers separated by commas") from None
