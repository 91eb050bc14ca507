"""Experiments: claims with rules, a run that measures, and tables and figures of the numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.experiments.context import Context
from training.experiments.figures import Figures
from training.experiments.verdicts import Interval, Verdict, combine

Results = dict[str, Any]
"""What a run returns: JSON-ready, with all that tables, figures and verdicts need."""


@dataclass(frozen=True)
class Claim:
    """A statement that is tested. It stands in the code, with its rule, before anything is measured.

    Attributes:
        key: names it within its experiment.
        text: the statement.
        rule: in words, what must be measured for the claim to hold; the numbers stand in the code.
        figure: name of the figure that shows it, or "".
        ours: whether it is this project's own promise and not the paper's.
    """

    key: str
    text: str
    rule: str
    figure: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Part:
    """One measurement that bears on a claim.

    Attributes:
        label: what was measured.
        measured: the number.
        verdict: what the rule says of it.
    """

    label: str
    measured: Interval
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """A claim after the measurement.

    Attributes:
        claim: the claim.
        parts: the measurements; the verdict follows from theirs.
        note: what else a reader should know.
    """

    claim: Claim
    parts: tuple[Part, ...]
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of all parts together."""
        return combine(part.verdict for part in self.parts)


@dataclass(frozen=True)
class Table:
    """A table of the report, also written as CSV.

    Attributes:
        name: file name without its end.
        title: what it shows.
        columns: headings.
        rows: one sequence of cells each, texts and numbers.
        shown: how many rows the report shows; the CSV has all.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]
    shown: int = 40


@dataclass(frozen=True)
class Experiment:
    """One result of the paper.

    Attributes:
        name: what `--only` takes.
        title: heading in the report.
        claims: what is tested.
        run: measures; everything that takes time is kept in cells (see `Context.cell`).
        judge: results -> one finding for each claim; pure.
        tables: results -> tables; pure.
        draw: results -> figures.
        notes: results -> paragraphs for the report; pure.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    run: Callable[[Context], Results]
    judge: Callable[[Results], Sequence[Finding]]
    tables: Callable[[Results], Sequence[Table]]
    draw: Callable[[Results, Figures], None]
    notes: Callable[[Results], Sequence[str]] = lambda results: ()


def by_key(claims: Sequence[Claim]) -> Mapping[str, Claim]:
    """Claims by their key."""
    return {claim.key: claim for claim in claims}
