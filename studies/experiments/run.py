"""`python -m studies paper`: measures every result of the paper and gives a verdict on each claim.

Measurements are kept in `<out>/cells` and trained models in `<out>/models`: the command can be stopped at any time and
resumes where it was, and a second run only draws the figures and writes the report again.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from studies.experiments.ablation import EXPERIMENT as ABLATION
from studies.experiments.cells import Cells, Measured, Missing
from studies.experiments.cheapness import EXPERIMENT as CHEAPNESS
from studies.experiments.context import Context
from studies.experiments.convergence import EXPERIMENT as CONVERGENCE
from studies.experiments.digits import EXPERIMENT as DIGITS
from studies.experiments.experiment import Experiment
from studies.experiments.figures import Figures
from studies.experiments.jacobian import EXPERIMENT as JACOBIAN
from studies.experiments.numbers import EXPERIMENT as NUMBERS
from studies.experiments.pareto import EXPERIMENT as PARETO
from studies.experiments.report import Section, write_report
from studies.experiments.sizes import FULL, QUICK, Sizes
from studies.experiments.stability import EXPERIMENT as STABILITY
from studies.experiments.step_sizes import EXPERIMENT as STEP_SIZES
from studies.experiments.trained import TrainedModels, training_seconds
from studies.experiments.trajectories import EXPERIMENT as TRAJECTORIES
from training.errors import Stopped, TrainingError, UsageError

EXPERIMENTS: tuple[Experiment, ...] = (
    CONVERGENCE,
    STABILITY,
    PARETO,
    TRAJECTORIES,
    JACOBIAN,
    STEP_SIZES,
    DIGITS,
    ABLATION,
    NUMBERS,
)
"""Experiments on the paper, in the order of the report."""

STUDY: tuple[Experiment, ...] = (CHEAPNESS,)
"""This project's own study: what makes a flow cheap to solve."""


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        out: folder for the report and everything that it is based on.
        only: names of the experiments to run; the report still shows earlier measurements of the others.
        sizes: how much to measure.
        models_dir: a repository of models to reuse if their recipes match.
        data_dir: folder with data files (MNIST), or None to download.
        force: measure the chosen experiments again (models are kept).
        threads: number of torch threads; None for torch's choice.
        conditions: a sentence about the machine for the report.
        study: run the study of cheap flows instead of the paper's experiments.
        measured: measure nothing; report what has been measured so far.
    """

    out: Path
    only: Sequence[str] = ()
    sizes: Sizes = FULL
    models_dir: Path | None = None
    data_dir: Path | None = None
    force: bool = False
    threads: int | None = None
    conditions: str = ""
    study: bool = False
    measured: bool = False


def sizes_of(quick: bool) -> Sizes:
    """Return the sizes of the quick or of the full run."""
    return QUICK if quick else FULL


def run_experiments(options: Options) -> Path:
    """Run the experiments, draw the figures, write the report.

    An experiment that fails does not stop the others; the report says why it is missing.

    Returns:
        The report.

    Raises:
        UsageError: there is no experiment of that name.
        TrainingError: an experiment failed; raised after the others are done and the report is written.
        Stopped: a signal arrived; measurements so far are kept.
    """
    experiments = STUDY if options.study else EXPERIMENTS
    chosen = set[str]() if options.measured else _chosen(options.only, experiments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    out = options.out / options.sizes.name if options.sizes.name != FULL.name else options.out
    models = TrainedModels(out / "models", out / "runs", options.models_dir, options.data_dir)
    sections: list[Section] = []
    for experiment in experiments:
        folder = out / "cells" / experiment.name
        if options.force and experiment.name in chosen:
            shutil.rmtree(folder, ignore_errors=True)
        cells = Cells(folder)
        context = Context(options.sizes, models, cells, options.data_dir)
        figures = Figures(out / "figures")
        if experiment.name in chosen:
            sections.append(_run(experiment, context, figures))
            continue
        sections.append(_measured(experiment, context))
        if options.measured:
            _draw(sections[-1], figures)
    path = write_report(
        out, options.sizes, sections, training_seconds(out / "models"), options.conditions, options.study
    )
    print(f"report: {path}", flush=True)
    failed = [section for section in sections if section.problem and section.problem != _PART]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(sections)} experiments could not be run ("
            + "; ".join(f"{one.experiment.name}: {one.problem}" for one in failed)
            + "); fix that and run the same command again"
        )
    return path


_PART = "not measured, or only in part; this run left it out"


def _chosen(only: Sequence[str], experiments: Sequence[Experiment]) -> set[str]:
    names = [experiment.name for experiment in experiments]
    for name in only:
        if name not in names:
            raise UsageError(f"--only is {name!r}; experiments are {', '.join(names)}")
    return set(only or names)


def _run(experiment: Experiment, context: Context, figures: Figures) -> Section:
    print(f"{experiment.name}: {experiment.title}", flush=True)
    begin = time.perf_counter()
    try:
        results = experiment.run(context)
    except Stopped:
        raise
    except TrainingError as error:
        print(f"{experiment.name}: not run: {error}", flush=True)
        return Section(experiment, None, context.cells.seconds, str(error))
    section = Section(experiment, results, context.cells.seconds)
    _draw(section, figures)
    for finding in section.findings:
        print(f"  {finding.verdict}: {finding.claim.text}", flush=True)
    print(f"  {time.perf_counter() - begin:.1f} s now; {context.cells.found} results existed", flush=True)
    return section


def _draw(section: Section, figures: Figures) -> None:
    if section.results is not None:
        with figures.style():
            section.experiment.draw(section.results, figures)


def _measured(experiment: Experiment, context: Context) -> Section:
    """Return the section of an experiment from earlier measurements, as far as there are any."""
    cells = Measured(context.cells.folder)
    try:
        results = experiment.run(Context(context.sizes, context.models, cells, context.data_dir))
    except Missing:
        return Section(experiment, None, 0.0, _PART)
    return Section(experiment, results, cells.seconds)
