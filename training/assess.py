"""`python -m training evaluate`: measures how good a trained model is and which solver it needs."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from models.checkpoint.card import Card, CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.report import REPORT_FILE
from models.noise import noise
from models.regular import write_atomically
from models.shapes import free_axes
from models.velocity import FieldKind
from selection.error import Field, NoErrors
from selection.frontier import percent
from selection.measure import REFERENCE, SECONDS, Paths
from solvers import SolverSpec, Status
from training.data import data_of
from training.dataset import DataSet
from training.errors import TrainingError, UsageError
from training.evaluation import swd, swd_by_chance
from training.folders import make_writable
from training.measurement import assess, conditions_of, cost_of, frontier_of, keep
from training.solving import parse_solver, solve

DEFAULT_SOLVERS = ("euler-10", "euler-50", "euler-100", "midpoint-10", "midpoint-25", "rk4-5", "rk4-20", "dopri5@1e-5")
"""The default solvers of an evaluation."""

FEW_STEPS = ("euler-1", "euler-2", "euler-4", "euler-8")
"""The default solvers for a field of average velocity."""


@dataclass(frozen=True)
class Row:
    """Measurements of one solver.

    Attributes:
        solver: its short text, such as `rk4-20`.
        nfe: velocity evaluations per sample, mean.
        p95, p95_high: p95 of the endpoint error and the upper end of its interval, as shares of the spread; None for a
            field of average velocity, because its steps follow no ODE, and if more than 5 % of the samples failed.
        swd: sliced Wasserstein-1 distance to real data unseen in training; None if no such data are available.
        failed: samples that did not reach t = 1.
    """

    solver: str
    nfe: float
    p95: float | None
    p95_high: float | None
    swd: float | None
    failed: int


def evaluate_checkpoint(
    path: Path,
    solvers: Sequence[str],
    samples: int,
    out: Path,
    data_dir: Path | None = None,
    seconds: float = SECONDS,
    guidances: Sequence[float] = (1.0,),
) -> list[Row]:
    """Measure a checkpoint: report and table are printed, a CSV and a plot written to `out`, all numbers to its report.

    The frontier of all solvers is measured too, for about `seconds` at most, and written beside the weights; the price
    is read off it. Without data, only solvers are compared.
    If `solvers` is empty, the defaults for the field are measured: `DEFAULT_SOLVERS` or `FEW_STEPS`. A field of average
    velocity has no frontier.

    Raises:
        UsageError: the field cannot take the steps of a solver.
        TrainingError: the checkpoint cannot be loaded, has free axes or named conditions, no sample reached t = 1, or a
            file cannot be written.
    """
    if not 2 <= samples <= 1_000_000:
        raise UsageError(f"--samples is {samples}; it must be from 2 to 1000000")
    make_writable(out, "output folder")
    try:
        checkpoint = load(path)
    except CheckpointError as error:
        raise TrainingError(str(error)) from None
    if not checkpoint.card.conditions and tuple(guidances) != (1.0,):
        raise UsageError(f"--guidance is for conditional models, and {path} is not conditional; leave it out")
    _check_known(checkpoint.card, path)
    average = checkpoint.card.field.takes_ends
    texts = solvers or (FEW_STEPS if average else DEFAULT_SOLVERS)
    specs = [parse_solver(text, checkpoint.plans) for text in texts]
    _check_fit(specs, checkpoint.card.field, path)
    data, note = data_of(checkpoint, data_dir)
    if data is not None:
        samples = min(samples, len(data.reference))
        assess(checkpoint, data, 0, math.inf, print)
    conditions = conditions_of(checkpoint, data, samples)
    x0 = noise(0, 0, samples, checkpoint.card.event_of(), checkpoint.dtype)
    try:
        paths = None if average else Paths.of(Field(checkpoint.velocity, conditions), x0)
    except NoErrors as error:
        raise TrainingError(f"evaluate: {error}") from None
    curve = None if average else frontier_of(checkpoint, conditions, data, guidances, seconds)
    cost = cost_of(checkpoint, x0, conditions, data, curve)
    rows = [_measure(checkpoint, spec, x0, conditions, paths, data) for spec in specs]
    chance = None if data is None else swd_by_chance(data.second_reference[:samples], data.reference[:samples])
    print(_table(rows, chance, note), *(cost.lines() if cost else ()), sep="\n")
    _write(rows, out, f"{checkpoint.card.name} {path.name}")
    record = {
        "samples": samples,
        "reference": None if average else REFERENCE,
        "swd_chance": chance,
        "note": note or None,
        "solvers": [asdict(row) for row in rows],
        "price": cost.record() if cost else None,
    }
    keep(checkpoint, evaluation=record)
    print(f"written to {out} and to {path / REPORT_FILE}")
    return rows


def _check_known(card: Card, path: Path) -> None:
    """Raise an error if the shape of states or the conditions are known to requests only."""
    if card.conditions and card.condition is None:
        names = ", ".join(card.conditions)
        raise TrainingError(
            f"{path}: takes conditions by name ({names}), and there are no examples of them to evaluate"
        )
    if axes := free_axes(card.event_shape):
        shape = " ".join(f"--shape {axis}=N" for axis in axes)
        raise TrainingError(
            f"{path}: has free axes ({', '.join(axes)}), and is evaluated at no particular shape; measure its frontier "
            f"at one: python -m models measure {path} {shape}"
        )


def _check_fit(specs: Sequence[SolverSpec], kind: FieldKind, path: Path) -> None:
    for spec in specs:
        if why := kind.check_solver(spec.solver):
            raise UsageError(f"--solver is {spec}; {path}: {why}; use {kind.solver}-2, for example")


def _measure(
    checkpoint: Checkpoint, spec: SolverSpec, x0: Tensor, conditions: Tensor | None, paths: Paths | None,
    data: DataSet | None,
) -> Row:  # fmt: skip
    solution = solve(checkpoint.velocity, x0, conditions, spec, tuned=checkpoint.plans)
    success = np.array([status == Status.SUCCESS for status in solution.status])
    if not success.any():
        raise TrainingError(f"evaluate: {spec}: none of {len(x0)} samples reached t = 1; the network is not usable")
    point = None if paths is None else paths.of_solution(spec, solution)
    errors = (None, None) if point is None else (point.p95, point.p95_high)
    distance = None if data is None else swd(solution.x.numpy()[success], data.reference[: len(x0)])
    return Row(str(spec), float(np.mean(solution.nfe)), *errors, distance, int((~success).sum()))


def _table(rows: Sequence[Row], chance: float | None, note: str) -> str:
    lines = [f"{'solver':<16} {'NFE':>7} {'p95':>9} {'promised':>9} {'SWD':>9} {'failed':>7}"]
    for row in rows:
        shown = "-" if row.swd is None else f"{row.swd:.5f}"
        errors = ["-" if error is None else percent(error) for error in (row.p95, row.p95_high)]
        lines.append(f"{row.solver:<16} {row.nfe:>7.1f} {errors[0]:>9} {errors[1]:>9} {shown:>9} {row.failed:>7}")
    if chance is not None:
        lines.append(f"real data are up to {chance:.5f} from real data by chance, so SWDs below it rank nothing")
    return "\n".join([*lines, *([note] if note else [])])


def _write(rows: Sequence[Row], out: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(rows[0])))
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    average = all(row.p95_high is None for row in rows)
    for name in dict.fromkeys(SolverSpec.parse(row.solver).solver for row in rows):
        own = [row for row in rows if SolverSpec.parse(row.solver).solver == name]
        drawn = sorted((row.nfe, value) for row in own if (value := row.swd if average else row.p95_high))
        axes.loglog([nfe for nfe, _ in drawn], [value for _, value in drawn], "o-", label=name)
    what = "distance to real data (SWD)" if average else "endpoint error, p95 as a share of the spread"
    axes.set(xlabel="NFE per sample", ylabel=what, title=title)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    try:
        write_atomically(out / "evaluation.csv", text.getvalue().encode())
        write_atomically(out / "evaluation.png", picture.getvalue())
    except OSError as error:
        raise TrainingError(f"{out}: cannot be written: {error.strerror}") from None
