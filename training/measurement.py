"""Measurements of a published model: is it any good, and what does it cost to sample from it?

A model is published as soon as it is trained, and measured afterwards, for a limited time. What was measured is printed
and written to `report.json` and `frontier.json` beside the weights, so the checkpoint itself never changes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.report import ReportError, add_to_report
from models.noise import noise
from selection.choice import USUAL_ERROR
from selection.error import NoErrors
from selection.frontier import Curve, FrontierError, store_frontier
from selection.measure import measure
from training.dataset import DataSet
from training.errors import TrainingError
from training.evaluation import Quality, TimeUp, draw, evaluate, limited, quality_of
from training.few_steps import FewSteps, few_steps
from training.price import Price, price
from training.report import Report, report_on
from training.student import Teacher

SECONDS = 60.0
"""Limit on all measurements after a training."""

PRICED = 128
"""Number of paths on which straightness and stiffness are measured."""

_SOFT = 0.7
"""Share of the time left after which no more solvers are begun; the rest is for the one that runs, and the price."""

Say = Callable[[str], None]


def measure_published(
    folder: Path, data: DataSet, seed: int, seconds: float = SECONDS, teacher: Teacher | None = None, say: Say = print
) -> Quality | None:
    """Measure a checkpoint for a limited time; print what was found line by line, and write it beside the weights.

    Args:
        folder: the checkpoint.
        data: its training and held-out data.
        seed: fixes noise, projections and judges.
        seconds: limit on the wall-clock time; 0 measures nothing.
        teacher: the parent, if the model is a student.
        say: is given each line.

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
        checkpoint = load(folder)
        quality, report = assess(checkpoint, data, seed, until, say)
        if quality is None:
            return None
        with limited(checkpoint.velocity, until):
            cost = _cost(checkpoint, data, seed, until, report, teacher, say)
    except TimeUp:
        say(f"not all was measured in {seconds:g} s; {_again(folder)} takes as long as you give it")
        return None
    except CheckpointError as error:
        raise TrainingError(str(error)) from None
    if cost is not None:
        for line in cost.lines():
            say(line)
        keep(checkpoint, price=cost.record())
    return quality


def _again(folder: Path) -> str:
    return f"python -m training evaluate {folder}"


def assess(
    checkpoint: Checkpoint, data: DataSet, seed: int, until: float, say: Say
) -> tuple[Quality | None, Report | None]:
    """Draw samples, compare them with held-out data, print and store the report; see `training.report`.

    Returns:
        Quality and report; both None if no sample reached t = 1, which is said.

    Raises:
        TimeUp: no sample was done at `until` (of `time.monotonic`).
    """
    drawn = draw(checkpoint.velocity, data, seed, until=until)
    if len(drawn.states) < 2:
        say(f"WARNING: {drawn.failed} of {drawn.asked} samples did not reach t = 1; the network is not usable")
        return None, None
    quality, report = quality_of(drawn, data, seed), report_on(drawn, data, seed)
    for line in (*report.lines(), *quality.lines()):
        say(line)
    keep(checkpoint, quality=asdict(quality), report=report.record())
    return quality, report


def keep(checkpoint: Checkpoint, **parts: Any) -> None:
    """Write parts of the report of a checkpoint.

    Raises:
        TrainingError: the file cannot be written.
    """
    try:
        add_to_report(checkpoint.path, checkpoint.card, parts)
    except ReportError as error:
        raise TrainingError(str(error)) from None


def _cost(
    checkpoint: Checkpoint, data: DataSet, seed: int, until: float, report: Report | None, teacher: Teacher | None,
    say: Say,
) -> Price | FewSteps | None:  # fmt: skip
    """Measure frontier and price; no price is named for a model whose samples are not like the data."""
    if teacher is not None:
        with limited(teacher.to(torch.device("cpu")).parent.velocity, until):
            theirs = evaluate(teacher.velocity, data, seed)
        return few_steps(checkpoint.velocity, data, seed, teacher.parent.card.name, theirs)
    conditions = conditions_of(checkpoint, data, PRICED)
    curve = frontier_of(checkpoint, conditions, data, (1.0,), _SOFT * (until - time.monotonic()), say)
    if report is None or report.broken:
        say("price: none is named, because the samples are not like the data, whatever they cost")
        return None
    x0 = noise(0, 0, PRICED, checkpoint.card.event_of(), checkpoint.dtype)
    return cost_of(checkpoint, x0, conditions, data, curve)


def conditions_of(checkpoint: Checkpoint, data: DataSet | None, samples: int) -> Tensor | None:
    """Return the conditions of the real data, repeated if they are fewer, or examples of conditions without data."""
    condition = checkpoint.card.condition
    if condition is None:
        return None
    if data is not None and data.reference_conditions is not None:
        given = torch.from_numpy(data.reference_conditions)
        given = given[torch.arange(samples) % len(given)]
        return given.to(checkpoint.dtype) if given.is_floating_point() else given
    return condition.examples(samples, checkpoint.dtype, nulls=False)


def frontier_of(
    checkpoint: Checkpoint,
    conditions: Tensor | None,
    data: DataSet | None,
    guidances: Sequence[float],
    seconds: float,
    say: Say = print,
) -> Curve | None:
    """Measure the frontier and merge it into the stored one; return its curve without guidance, if it has one.

    Raises:
        TrainingError: it cannot be measured or written.
    """
    text = conditions_text(data)
    try:
        frontier = measure(
            checkpoint,
            conditions=conditions if text else None,
            conditions_text=text,
            guidances=guidances,
            seconds=seconds,
            until_error=USUAL_ERROR,  # then a budget for it has a solver
            note=say,
        )
        say(f"frontier: {store_frontier(checkpoint.path, checkpoint.card, frontier)}")
    except (NoErrors, FrontierError) as error:
        raise TrainingError(f"evaluate: {error}") from None
    return frontier.curve(None)


def conditions_text(data: DataSet | None) -> str:
    """Return what the frontier says of its conditions; empty if they are not those of data."""
    return "those of unseen data" if data is not None and data.reference_conditions is not None else ""


def cost_of(
    checkpoint: Checkpoint, x0: Tensor, conditions: Tensor | None, data: DataSet | None, curve: Curve | None
) -> Price | FewSteps | None:
    """Return the cost of solving the model; None for a field of average velocity without data to compare with."""
    if checkpoint.card.field.takes_ends:
        return None if data is None else few_steps(checkpoint.velocity, data, 0)
    if curve is None:
        return None
    rows, about = (None, "") if conditions is None else (conditions[:PRICED], conditions_text(data))
    return price(checkpoint.velocity, x0[:PRICED], curve, rows, about)
