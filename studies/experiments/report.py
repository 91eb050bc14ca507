"""The report: REPORT.md and the numbers behind it."""

import csv
import io
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from models.regular import write_atomically
from studies.experiments.cells import plain
from studies.experiments.experiment import Experiment, Finding, Part, Results, Table
from studies.experiments.sizes import Sizes
from training.errors import TrainingError
from training.folders import make_writable

PAPER = "From Euler to Dormand-Prince: ODE Solvers for Flow Matching Generative Models (arXiv:2605.00836)"


@dataclass(frozen=True)
class Section:
    """One experiment after its run.

    Attributes:
        experiment: the experiment.
        results: its numbers; None if it could not be run.
        seconds: time taken, including the training that it waited for.
        problem: why it could not be run, or "".
    """

    experiment: Experiment
    results: Results | None
    seconds: float
    problem: str = ""

    @property
    def findings(self) -> Sequence[Finding]:
        """Its claims with verdicts; none if it could not be run."""
        return () if self.results is None else self.experiment.judge(self.results)


def write_report(
    folder: Path,
    sizes: Sizes,
    sections: Sequence[Section],
    training_s: float = 0.0,
    conditions: str = "",
    study: bool = False,
) -> Path:
    """Write REPORT.md, one CSV per table, and numbers.json with all findings.

    Args:
        folder: where to write; the figures are in its `figures/`.
        sizes: how much was measured.
        sections: the experiments, in the order of the report.
        training_s: seconds spent in all training steps; those in `Section.seconds` are counted in both.
        conditions: one sentence on the conditions of the run.
        study: whether it is the project's own study of cheap flows, and not of the paper.

    Raises:
        TrainingError: a file cannot be written.
    """
    make_writable(folder / "numbers", "report folder")
    for section in sections:
        for table in [] if section.results is None else section.experiment.tables(section.results):
            _write(folder / "numbers" / f"{table.name}.csv", _csv(table))
    findings = {
        f"{section.experiment.name}/{finding.claim.key}": {
            **asdict(finding), "verdict": finding.verdict.value, "ours": finding.claim.ours
        }
        for section in sections
        for finding in section.findings
    }  # fmt: skip
    numbers = {"sizes": asdict(sizes), "seconds": {s.experiment.name: s.seconds for s in sections}, "claims": findings}
    _write(folder / "numbers" / "numbers.json", json.dumps(plain(numbers), indent=1, allow_nan=False) + "\n")
    _write(folder / "REPORT.md", "\n".join(_report(sizes, sections, training_s, conditions, study)) + "\n")
    return folder / "REPORT.md"


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise TrainingError(f"{path} cannot be written: {error.strerror}; make room there and run this again") from None


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return text.getvalue()


def _report(sizes: Sizes, sections: Sequence[Section], training_s: float, conditions: str, study: bool) -> list[str]:
    title = "What makes a flow cheap to solve" if study else f"{PAPER}: what holds"
    lines = [f"# {title}", "", *_head(sizes, sections, training_s, conditions, study), ""]
    lines += ["| claim | measured | verdict | figure |", "|---|---|---|---|"]
    for section in sections:
        if section.results is None:
            lines.append(f"| all claims of `{section.experiment.name}` | not run: {section.problem} | not run | |")
        lines += [_row(finding) for finding in section.findings]
    for section in sections:
        lines += _section(section)
    return lines


def _head(sizes: Sizes, sections: Sequence[Section], training_s: float, conditions: str, study: bool) -> list[str]:
    quick = sizes.name != "full"
    if study:
        compared = (
            f"Each model is trained with seeds {_list(sizes.training_seeds)}; "
            "the column `seeds` counts those measured. "
            f"The price is measured on {sizes.price_samples} paths, and SWD against the data set's unseen reference. "
            f"On MNIST, models are trained on {sizes.price_digits:,} digits for {sizes.price_mnist_epochs} epochs. "
        )
    else:
        compared = (
            f"Moons and circles: training seeds {_list(sizes.training_seeds)}, sampling seeds "
            f"{_list(sizes.sampling_seeds)}, {sizes.samples:,} samples "
            f"against as many real ones (on MNIST {sizes.mnist_samples:,}, sampling "
            f"seeds {_list(sizes.mnist_seeds)}, one training seed). "
        )
    measured = sum(section.seconds for section in sections)
    threads = torch.get_num_threads()
    seeds = "" if study else ", on MNIST over sampling seeds"
    return [
        f"Written by `python -m studies {'flows' if study else 'paper'}{f' --{sizes.name}' if quick else ''}`. "
        + (f"This is the **{sizes.name} run at reduced size**: its verdicts are hints. " if quick else "")
        + compared
        + f"The experiments took {measured / 60:.0f} minutes, including the training they waited for; the "
        f"training steps took {training_s / 60:.0f}. Both are summed over all processes. "
        f"Machine: {os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__}, "
        f"{threads} thread{'s' if threads > 1 else ''} per process. {conditions}".rstrip(),
        "",
        "Each verdict follows from a rule that was fixed in the code before the run (`studies/experiments/`). Numbers "
        "over several seeds are given as mean ± standard deviation. A rule holds if the whole 95 % confidence interval "
        f"of the mean (Student's t; over training seeds{seeds}) satisfies it, and does not hold "
        "if the whole interval violates it; otherwise it is inconclusive. A claim with several parts holds *partly* "
        "if some of them hold." + ("" if study else f" {_OF_THE_PAPER}"),
    ]


_OF_THE_PAPER = (
    "Our source was the paper's abstract, its introduction and a list of its results; the claims are in our words. "
    "Those marked (ours) are made by this project."
)


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _row(finding: Finding) -> str:
    claim = finding.claim
    parts = finding.parts
    measured = "; ".join(f"{part.label}: {part.measured}" for part in parts[:4])
    if len(parts) > 4:
        kept = sum(part.verdict == "holds" for part in parts)
        measured = f"{kept} of {len(parts)} measurements satisfy the rule (below); " + "; ".join(
            f"{part.label}: {part.measured}" for part in _extremes(finding)
        )
    figure = f"[{claim.figure}](figures/{claim.figure}.png)" if claim.figure else ""
    text = f"{claim.text}{' (ours)' if claim.ours else ''}"
    return f"| {_cell(text)} | {_cell(measured)} | **{finding.verdict}** | {figure} |"


def _extremes(finding: Finding) -> Sequence[Part]:
    """Return at most two parts: first those that do not satisfy the rule, then the first of all."""
    broken = [part for part in finding.parts if part.verdict != "holds"]
    return list(dict.fromkeys([*broken[:2], finding.parts[0]]))[:2]


def _section(section: Section) -> list[str]:
    experiment = section.experiment
    lines = ["", f"## {experiment.title}", "", f"`--only {experiment.name}`, {section.seconds:.0f} s."]
    if section.results is None:
        return [*lines, "", f"Not run: {section.problem}."]
    lines += [text for note in experiment.notes(section.results) for text in ("", note)]
    for finding in section.findings:
        lines += ["", f"**{finding.claim.text}: {finding.verdict}.** Rule: {finding.claim.rule}.", ""]
        lines += ["| measured | value | 95 % interval | satisfies the rule |", "|---|---|---|---|"]
        for part in finding.parts:
            value = part.measured
            interval = f"{value.low:.4g} to {value.high:.4g}" if value.n > 1 else ""
            if value.n == 1 and not np.isfinite(value.low):
                interval = "one seed: no spread"
            lines.append(f"| {_cell(part.label)} | {value} | {interval} | {part.verdict} |")
        if finding.note:
            lines += ["", f"{finding.note}."]
    for table in experiment.tables(section.results):
        lines += ["", f"{table.title} ([all numbers](numbers/{table.name}.csv))", "", *_markdown(table)]
    figures = dict.fromkeys(finding.claim.figure for finding in section.findings if finding.claim.figure)
    for name in [*figures, *(_MORE.get(experiment.name, ()))]:
        lines += ["", f"![{name}](figures/{name}.png)"]
    return lines


_MORE = {"trajectories": ("samples",)}
"""Figures that belong to no claim."""


def _markdown(table: Table) -> list[str]:
    lines = ["| " + " | ".join(map(_cell, table.columns)) + " |", "|" + "---|" * len(table.columns)]

    def shown(value: str | float | int | None) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else _cell(str(value))

    for row in table.rows[: table.shown]:
        lines.append("| " + " | ".join(map(shown, row)) + " |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
