"""Measurements of a published model, after training or by `evaluate`: is it any good, and what does a sample cost?

A model is published as soon as it is trained, and measured afterwards, for a limited time. What was measured is printed
and written to `report.json` and `frontier.json` beside the weights, so the checkpoint itself never changes.
"""

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from models.checkpoint.bound import REPORT_FILE, BoundFileError, add_to_report, read_report
from models.checkpoint.loading import Checkpoint
from models.field import Field
from models.noise import noise
from models.shapes import sized
from selection.choice import USUAL_ERROR
from selection.error import Ends, NoErrors, arrivals, exact_ends
from selection.frontier import percent, store_frontier
from selection.measure import REFERENCE, measure
from selection.measure import SECONDS as FRONTIER_SECONDS
from solvers import SolverSpec
from training.comparison import report_on
from training.data import data_of
from training.dataset import DataSet
from training.errors import TrainingError, UsageError
from training.evaluation import Quality, TimeUp, draw, evaluate, limited, quality_of, swd, swd_by_chance
from training.folders import csv_of, make_writable, write_results
from training.page import PAGE_FILE, page
from training.price import FewSteps, Price, few_steps, price
from training.report import SampleReport
from training.solving import open_checkpoint, parse_solver, sampled
from training.student import Teacher

SECONDS = 60.0
"""Limit on all measurements after a training."""

PRICED = 128
"""Number of paths on which straightness and stiffness are measured."""

_ROWS, _PICTURES, _NUMBERS = 256, 16, 16_384
"""Real rows or pictures that are stored with a model, to be shown beneath its samples; and numbers in all of them."""

_SOFT = 0.7
"""Share of the time left after which no more solvers are begun; the rest is for the one that runs, and the price."""

Say = Callable[[str], None]


def measure_published(
    folder: Path,
    data: DataSet,
    seed: int,
    seconds: float = SECONDS,
    teacher: Teacher | None = None,
    say: Say = print,
    examples: bool = True,
) -> Quality | None:
    """Measure a checkpoint for a limited time; print what was found line by line, and write it beside the weights.

    Args:
        folder: the checkpoint.
        data: its training and held-out data.
        seed: fixes noise, projections and judges.
        seconds: limit on the wall-clock time; 0 measures nothing.
        teacher: the parent, if the model is a student.
        say: is given each line.
        examples: whether to store some of the held-out data, which everyone who may use the model can then see.

    Returns:
        The quality of its samples; None if there was no time for it.

    Raises:
        TrainingError: the checkpoint cannot be read, or a file cannot be written.
    """
    if not seconds:
        return None
    until = time.monotonic() + seconds
    say(f"measuring it for {seconds:g} s at most; it is published, so Ctrl-C loses nothing but numbers")
    try:
        checkpoint = open_checkpoint(folder)
        if (judged := assess(checkpoint, data, seed, until, say, examples)) is None:
            return None
        quality, report = judged
        if examples and (real := examples_of(data)):
            say(f"{len(real)} of the held-out samples are stored for its page; --no-examples stores none")
            keep(checkpoint, examples=real)
        with limited(checkpoint.velocity, until):
            cost = _cost(checkpoint, data, seed, until, not report.broken, teacher, say)
    except TimeUp:
        again = f"python -m training evaluate {folder}"
        say(f"not all was measured in {seconds:g} s; {again} takes as long as you give it")
        return None
    if cost is not None:
        for line in cost.lines():
            say(line)
        keep(checkpoint, price=cost)
    return quality


def examples_of(data: DataSet) -> list[Any]:
    """Return some held-out samples as decoded, in three digits or, of rows, six; none if they are large."""
    shape = sized(data.decoder.data_shape, {})
    most = _ROWS if len(shape) == 1 else _PICTURES
    count = min(most, _NUMBERS // math.prod(shape), len(data.reference))
    if not count:
        return []
    with torch.no_grad():
        decoded = data.decoder.decode(torch.from_numpy(data.reference[:count])).double().numpy()
    digits = 6 if len(shape) == 1 else 3
    return np.array([float(f"{value:.{digits}g}") for value in decoded.ravel()]).reshape(decoded.shape).tolist()


def assess(
    checkpoint: Checkpoint, data: DataSet, seed: int, until: float, say: Say, real: bool
) -> tuple[Quality, SampleReport] | None:
    """Draw samples, compare them with held-out data, print and store the report; see `training.report`.

    Args:
        checkpoint: the model.
        data: its training and held-out data.
        seed: fixes noise, projections and judges.
        until: time limit, of `time.monotonic`.
        say: is given each line.
        real: whether the page of the report may show pictures of the held-out data.

    Returns:
        Quality and report; None if no sample reached t = 1, which is said.

    Raises:
        TimeUp: no sample was done at `until` (of `time.monotonic`).
    """
    drawn = draw(checkpoint.velocity, data, seed, until=until)
    if len(drawn.states) < 2:
        say(f"WARNING: {drawn.failed} of {drawn.requested} samples did not reach t = 1; the network is not usable")
        return None
    quality, report = quality_of(drawn, data, seed), report_on(drawn, data, seed)
    for line in (*report.lines(), *quality.lines()):
        say(line)
    keep(checkpoint, quality=quality, report=report.record())
    written = page(f"{checkpoint.card.name} v{checkpoint.path.name}", report, drawn, data, real)
    write_results(checkpoint.path, {PAGE_FILE: written.encode()})
    say(f"the whole report, with tables and pictures: {checkpoint.path / PAGE_FILE}")
    return quality, report


def keep(checkpoint: Checkpoint, **parts: Any) -> None:
    """Write parts of the report of a checkpoint: what JSON can say, or dataclasses.

    Raises:
        TrainingError: the file cannot be written.
    """
    try:
        add_to_report(checkpoint.path, checkpoint.card, to_jsonable_python(parts))
    except BoundFileError as error:
        raise TrainingError(str(error)) from None


def _cost(
    checkpoint: Checkpoint, data: DataSet, seed: int, until: float, good: bool, teacher: Teacher | None, say: Say
) -> Price | FewSteps | None:
    """Measure what a sample costs."""
    if teacher is not None:
        with limited(teacher.parent.velocity.to("cpu"), until):
            theirs = evaluate(teacher.velocity, data, seed)
        return few_steps(checkpoint.velocity, data, seed, teacher.parent.card.name, theirs)
    conditions = conditions_of(checkpoint, data, PRICED)
    x0 = noise(0, 0, PRICED, checkpoint.card.event_of(), checkpoint.dtype)
    return _price(checkpoint, x0, conditions, data, (1.0,), _SOFT * (until - time.monotonic()), good, say)


def conditions_of(checkpoint: Checkpoint, data: DataSet | None, samples: int) -> Tensor | None:
    """Return the conditions of the real data, repeated if they are fewer, or examples of conditions without data."""
    condition = checkpoint.card.condition
    if condition is None:
        return None
    if data is not None and data.reference_conditions is not None:
        rows = torch.from_numpy(np.resize(data.reference_conditions, (samples, *data.reference_conditions.shape[1:])))
        return rows.to(checkpoint.dtype) if rows.is_floating_point() else rows
    return condition.examples(samples, checkpoint.dtype, nulls=False)


def _price(
    checkpoint: Checkpoint,
    x0: Tensor,
    conditions: Tensor | None,
    data: DataSet | None,
    guidances: Sequence[float],
    seconds: float,
    good: bool = True,
    say: Say = print,
) -> Price | None:
    """Measure the frontier, merge it into the stored one, and read the price off its curve without guidance.

    No price is named for a model whose samples are not like the data, or without this curve.

    Raises:
        TrainingError: the frontier cannot be measured or written.
    """
    about = "those of unseen data" if data is not None and data.reference_conditions is not None else ""
    try:
        frontier = measure(
            checkpoint,
            conditions=conditions if about else None,
            conditions_text=about,
            guidances=guidances,
            seconds=seconds,
            until_error=USUAL_ERROR,  # then a budget for it has a solver
            note=say,
        )
        say(f"frontier: {store_frontier(checkpoint.path, checkpoint.card, frontier)}")
    except (NoErrors, BoundFileError) as error:
        raise TrainingError(f"evaluate: {error}") from None
    if not good:
        say("price: none is named, because the samples are not like the data, whatever they cost")
    if not good or (curve := frontier.curve(None)) is None:
        return None
    rows = None if conditions is None else conditions[:PRICED]
    return price(checkpoint.velocity, x0[:PRICED], curve, rows, about)


DEFAULT_SOLVERS = ("euler-10", "euler-50", "euler-100", "midpoint-10", "midpoint-25", "rk4-5", "rk4-20", "dopri5@1e-5")
"""The default solvers of an evaluation."""

FEW_STEPS = ("euler-1", "euler-2", "euler-4", "euler-8")
"""The default solvers for a field of average velocity."""


@dataclass(frozen=True)
class SolverRow:
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
    seconds: float = FRONTIER_SECONDS,
    guidances: Sequence[float] = (1.0,),
) -> list[SolverRow]:
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
    checkpoint = open_checkpoint(path, "evaluate it")
    if not checkpoint.card.conditions and tuple(guidances) != (1.0,):
        raise UsageError(f"--guidance is for conditional models, and {path} is not conditional; leave it out")
    kind = checkpoint.card.field
    texts = solvers or (FEW_STEPS if kind.no_path else DEFAULT_SOLVERS)
    specs = [parse_solver(text, checkpoint.plans) for text in texts]
    for spec in specs:
        if why := kind.check_solver(spec.solver):
            raise UsageError(f"--solver is {spec}; {path}: {why}")
    data, note = data_of(checkpoint, data_dir)
    if data is not None:
        samples = min(samples, len(data.reference))
        try:
            examples = "examples" in read_report(path, checkpoint.card)
        except BoundFileError:
            examples = False
        assess(checkpoint, data, 0, math.inf, print, examples)
    conditions = conditions_of(checkpoint, data, samples)
    x0 = noise(0, 0, samples, checkpoint.card.event_of(), checkpoint.dtype)
    if kind.no_path:
        ends, cost = None, None if data is None else few_steps(checkpoint.velocity, data, 0)
    else:
        try:
            ends = Ends.of(exact_ends(Field(checkpoint.velocity, conditions, checkpoint.network_conditions), x0))
        except NoErrors as error:
            raise TrainingError(f"evaluate: {error}") from None
        cost = _price(checkpoint, x0, conditions, data, guidances, seconds)
    rows = [_measure(checkpoint, spec, x0, conditions, ends, data) for spec in specs]
    chance = None if data is None else swd_by_chance(data.second_reference[:samples], data.reference[:samples])
    print(_table(rows, chance, note), *(cost.lines() if cost else ()), sep="\n")
    _write(rows, out, f"{checkpoint.card.name} {path.name}")
    record = {
        "samples": samples,
        "reference": None if ends is None else REFERENCE,
        "swd_chance": chance,
        "note": note or None,
        "solvers": rows,
        "price": cost,
    }
    keep(checkpoint, evaluation=record)
    print(f"written to {out} and to {path / REPORT_FILE}")
    return rows


def _measure(
    checkpoint: Checkpoint, spec: SolverSpec, x0: Tensor, conditions: Tensor | None, ends: Ends | None,
    data: DataSet | None,
) -> SolverRow:  # fmt: skip
    field = Field(checkpoint.velocity, conditions)
    solution, reached = sampled(f"evaluate: {spec}", field, x0, spec, checkpoint.plans)
    point = None if ends is None else ends.point(str(spec), arrivals(solution.x, solution.status), solution.nfe)
    errors = (None, None) if point is None else (point.p95, point.p95_high)
    distance = None if data is None else swd(solution.x.numpy()[reached], data.reference[: len(x0)])
    return SolverRow(str(spec), float(np.mean(solution.nfe)), *errors, distance, int((~reached).sum()))


def _table(rows: Sequence[SolverRow], chance: float | None, note: str) -> str:
    lines = [f"{'solver':<16} {'NFE':>7} {'p95':>9} {'promised':>9} {'SWD':>9} {'failed':>7}"]
    for row in rows:
        shown = "-" if row.swd is None else f"{row.swd:.5f}"
        errors = ["-" if error is None else percent(error) for error in (row.p95, row.p95_high)]
        lines.append(f"{row.solver:<16} {row.nfe:>7.1f} {errors[0]:>9} {errors[1]:>9} {shown:>9} {row.failed:>7}")
    if chance is not None:
        lines.append(f"real data are up to {chance:.5f} from real data by chance, so SWDs below it rank nothing")
    return "\n".join([*lines, *([note] if note else [])])


def _write(rows: Sequence[SolverRow], out: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

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
    table = csv_of([vars(rows[0]), *(vars(row).values() for row in rows)])
    write_results(out, {"evaluation.csv": table, "evaluation.png": picture.getvalue()})
