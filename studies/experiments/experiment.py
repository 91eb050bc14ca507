"""Experiments: claims with rules, a run that measures, and tables and figures of the numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.experiments.context import Context
from studies.experiments.figures import Figures
from studies.experiments.verdicts import Interval, Verdict, combine

Results = dict[str, Any]
"""Results of a run: JSON-ready, with everything that tables, figures and verdicts need."""


@dataclass(frozen=True)
class Claim:
    """A statement under test. It is written in the code, with its rule, before anything is measured.

    Attributes:
        key: its name within its experiment.
        text: the statement.
        rule: in words, the measurement that makes the claim hold; the code has the numbers.
        figure: name of the figure for it, or "".
        ours: whether it is this project's own claim and not the paper's.
    """

    key: str
    text: str
    rule: str
    figure: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Part:
    """One measurement for a claim.

    Attributes:
        label: what was measured.
        measured: the number.
        verdict: outcome of the rule.
    """

    label: str
    measured: Interval
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """A claim with its measurements.

    Attributes:
        claim: the claim.
        parts: the measurements; the verdict follows from theirs.
        note: further remarks for the reader.
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
        name: file name without its suffix.
        title: title of the table.
        columns: headings.
        rows: one sequence of cells each, strings and numbers.
        shown: number of rows in the report; the CSV has all.
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
        name: name for `--only`.
        title: heading in the report.
        claims: the statements under test.
        run: measures; everything that takes time is stored in cells (see `Context.cell`).
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
    """Return the claims by key."""
    return {claim.key: claim for claim in claims}
