"""Is it any good? The report on a trained model: its samples against held-out data, in numbers and in words.

It compares all samples, each column, each class and each range of a condition, and asks whether samples follow their
condition, whether columns are correlated as in the data, and whether the network has memorised its training data. Every
share comes with what real data give and with what chance gives, so that noise is not taken for a fault, or for quality.
The numbers are from `training.comparison`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

FAR, _FAR_SHARE = 4.0, 0.65
"""A set of samples is not like the data if it is told apart in more than this share, and beyond chance by so many
standard deviations of guessing."""

_LOST = 0.15
"""A condition is not followed if samples fall short of real data by more than this, and by more than chance."""

_APART = 0.15
"""Smallest distance of a column (Kolmogorov and Smirnov's) that is worth a warning."""

_FEW = 10
"""Training rows of a class below which its samples are not to be trusted."""

_NAMED = 3
"""Columns, classes or pairs that a sentence names, the worst first."""


def by_guessing(rows: float) -> float:
    """Return the standard deviation of the share that a judge gets right by guessing, on a number of rows."""
    return 0.5 / math.sqrt(max(1, rows))


def _is_far(share: float, rows: int) -> bool:
    return share > max(_FAR_SHARE, 0.5 + FAR * by_guessing(rows))


@dataclass(frozen=True)
class ColumnReport:
    """One column of rows.

    Attributes:
        name: its name, or its number from 0.
        distance: Kolmogorov and Smirnov's distance of samples and held-out rows, from 0 to 1.
        by_chance: the distance that rows of one distribution stay below in 99.9 % of cases, for all columns together.
        samples, data: the values below which 2.5 %, 50 % and 97.5 % of samples and of held-out rows lie.
    """

    name: str
    distance: float
    by_chance: float
    samples: list[float]
    data: list[float]

    @property
    def far(self) -> bool:
        """Whether samples differ from the data in this column."""
        return self.distance > max(_APART, self.by_chance)


@dataclass(frozen=True)
class GroupReport:
    """Samples of one class, or in one range of a condition.

    Attributes:
        name: the class, or the number and range of the condition.
        rows: held-out rows in it, which is also the number of its samples.
        trained: training rows in it.
        told_apart: share of both that the judge of all samples got right; None without rows.
        recognised, recognised_real: for a class, the share of its samples and of its held-out rows that a judge of
            classes, trained on real data, takes for it; None without rows.
    """

    name: str
    rows: int
    trained: int
    told_apart: float | None
    recognised: float | None = None
    recognised_real: float | None = None

    @property
    def far(self) -> bool:
        """Whether its samples are not like the data."""
        return self.told_apart is not None and _is_far(self.told_apart, 2 * self.rows)

    @property
    def lost(self) -> bool:
        """Whether its samples are not of this class."""
        if self.recognised is None or self.recognised_real is None:
            return False
        return self.recognised < self.recognised_real - max(_LOST, FAR * by_guessing(self.rows))


@dataclass(frozen=True)
class ConditionReport:
    """How well samples follow one number of a condition vector.

    Attributes:
        name: the number's name, or its place in the condition from 0.
        samples, data: correlation of the condition with what a judge, trained on real data, reads off from samples and
            from held-out rows; None if the condition, or what is read off, never changes.
    """

    name: str
    samples: float | None
    data: float | None

    @property
    def shown(self) -> bool:
        """Whether real data show this number of their condition."""
        return self.data is not None and self.data > 0.3

    def lost(self, rows: int) -> bool:
        """Return whether samples do not follow it, of which there are so many."""
        short = (self.data or 0.0) - (self.samples or 0.0)
        return self.shown and short > max(_LOST, FAR / np.sqrt(max(1, rows)))

    def agreement(self) -> str:
        """Return how samples and data show it, in words."""
        return f"{self.samples or 0.0:.2f} (unseen data: {self.data:.2f})"


@dataclass(frozen=True)
class Pair:
    """Two columns and their rank correlation in samples and in training rows."""

    columns: list[str]
    samples: float
    data: float


@dataclass(frozen=True)
class Correlations:
    """Rank correlations of the first columns, (columns, columns), in samples and in training rows."""

    columns: list[str]
    samples: list[list[float]]
    data: list[list[float]]


@dataclass(frozen=True)
class SampleReport:
    """What was found.

    Attributes:
        samples: samples drawn, compared with as many held-out rows.
        failed: samples that did not reach t = 1.
        reference: description of the held-out data.
        solver: the solver.
        told_apart: share of samples and held-out rows that a judge got right.
        real_told_apart: the same for training rows in place of samples.
        by_chance: share below which a judge may only have guessed.
        nearer: share of samples that lie nearer to a training row than half of the held-out rows do; 0.5 is right.
        columns: each column of rows; empty for pictures.
        classes, ranges: each class, or each third of each number of a condition.
        asked: each number of a condition vector.
        pairs: pairs of columns that are correlated otherwise than in the data, the worst first.
        correlations: those of all columns side by side; None without columns.
    """

    samples: int
    failed: int
    reference: str
    solver: str
    told_apart: float
    real_told_apart: float
    by_chance: float
    nearer: float
    columns: list[ColumnReport] = field(default_factory=list)
    classes: list[GroupReport] = field(default_factory=list)
    ranges: list[GroupReport] = field(default_factory=list)
    asked: list[ConditionReport] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    correlations: Correlations | None = None

    @property
    def broken(self) -> bool:
        """Whether samples as a whole are not like the data."""
        return self.failed > self.samples // 10 or self._told_apart

    def lines(self) -> Iterator[str]:
        """Yield the report in words."""
        yield f"is it any good? {self.samples:,} samples by {self.solver} against {self.reference}"
        if not self.broken:
            close = self.told_apart < self.by_chance
            yield f"samples {'cannot be told from' if close else 'are close to'} unseen data: {self._share()}"
        yield from self._followed()
        if not self.broken:
            yield from self._praise()
        for warning in self.warnings:
            yield f"WARNING: {warning}"

    def record(self) -> dict[str, Any]:
        """Return the report as JSON-ready data, its sentences included."""
        return {**asdict(self), "warnings": self.warnings, "words": list(self.lines())}

    @property
    def _told_apart(self) -> bool:
        return _is_far(self.told_apart, 2 * (self.samples - self.failed))

    @property
    def _memorised(self) -> bool:
        return _is_far(self.nearer, self.samples - self.failed) and self.nearer > 0.75

    def _share(self) -> str:
        return (
            f"a judge is right in {self.told_apart:.0%} of cases (50% is guessing, less than {self.by_chance:.0%} may "
            f"be chance; training rows from unseen: {self.real_told_apart:.0%})"
        )

    def _followed(self) -> Iterator[str]:
        """Yield how samples follow their condition, if they do or if that cannot be judged."""
        own = [group for group in self.classes if group.recognised is not None and group.recognised_real is not None]
        if own and not any(group.lost for group in own):
            samples, data = (
                np.average([getattr(group, name) for group in own], weights=[group.rows for group in own])
                for name in ("recognised", "recognised_real")
            )
            yield f"samples follow their class: {samples:.0%} are recognised as it (unseen data: {data:.0%})"
        shown = [one for one in self.asked if one.shown]
        if shown and not any(one.lost(self.samples) for one in shown):
            worst = min(shown, key=lambda one: one.samples or 0.0)
            yield (
                "samples follow the condition: what is read off from them agrees with what was asked, correlation "
                f"{worst.agreement()}"
            )
        if self.asked and not shown:
            yield "the data themselves hardly show their condition, so whether samples follow it cannot be judged"

    def _praise(self) -> Iterator[str]:
        """Yield what else is right, and by how much."""
        if self.columns and not any(column.far for column in self.columns):
            worst = max(self.columns, key=lambda column: column.distance)
            yield (
                f"each column is as in the data: the worst, {worst.name}, differs by {worst.distance:.2f} (Kolmogorov "
                f"and Smirnov's distance; up to {worst.by_chance:.2f} may be chance)"
            )
        for what, groups in (("class", self.classes), ("range of the condition", self.ranges)):
            shares = sorted((group.told_apart, group.name) for group in groups if group.told_apart is not None)
            if shares and not any(group.far for group in groups):
                (least, best), (most, worst) = shares[0], shares[-1]
                yield f"by {what}, the judge is right in {least:.0%} ({best}) to {most:.0%} ({worst}) of cases"
        if self.correlations and not self.pairs:
            names, samples, data = self.correlations.columns, self.correlations.samples, self.correlations.data
            places = [(i, j) for i in range(len(names)) for j in range(i)]
            strongest = sorted(places, key=lambda place: -abs(data[place[0]][place[1]]))[:_NAMED]
            shown = ", ".join(f"{names[j]} and {names[i]} {samples[i][j]:.2f} ({data[i][j]:.2f})" for i, j in strongest)
            yield f"columns are correlated as in the data (in brackets): {shown}"
        if not self._memorised:
            yield (
                f"no sign of memorising: {self.nearer:.0%} of samples lie nearer to a training row than half of the "
                "unseen rows do (50% is right)"
            )

    @property
    def warnings(self) -> list[str]:
        """Sentences on what is wrong, the worst first."""
        lines = [f"{self.failed} of {self.samples} samples did not reach t = 1"] if self.failed else []
        if self._told_apart:
            lines.append(f"samples are not like the data: {self._share()}")
        lines += self._lost()
        far = sorted((column for column in self.columns if column.far), key=lambda column: -column.distance)
        for column in far[:_NAMED]:
            (low, _, high), (least, _, most) = column.samples, column.data
            lines.append(
                f"column {column.name} differs from the data: 95% of samples lie from {low:.4g} to {high:.4g}, of "
                f"unseen rows from {least:.4g} to {most:.4g}"
            )
        if len(far) > _NAMED:
            lines.append(f"{len(far) - _NAMED} more columns differ from the data")
        for pair in self.pairs[:_NAMED]:
            less = "less" if abs(pair.samples) < abs(pair.data) else "otherwise"
            lines.append(
                f"{' and '.join(pair.columns)} are {less} correlated in samples ({pair.samples:.2f}) than in the data "
                f"({pair.data:.2f}): train longer"
            )
        if self._memorised:
            lines.append(
                f"{self.nearer:.0%} of samples lie nearer to a training row than half of the unseen rows do: the "
                "network memorises; train it less, or on more data"
            )
        return lines

    def _lost(self) -> Iterator[str]:
        """Yield the classes and the numbers of a condition that samples do not follow, and where they are far off."""
        for group in self.classes:
            if group.trained < _FEW:
                rows = "no training row" if not group.trained else f"only {group.trained} training rows"
                yield f"class {group.name} has {rows}: its samples are not to be trusted"
        lost = sorted((group for group in self.classes if group.lost), key=lambda group: group.recognised or 0.0)
        for group in lost[:_NAMED]:
            yield (
                f"samples do not follow class {group.name}: {group.recognised:.0%} are recognised as it (unseen data: "
                f"{group.recognised_real:.0%})"
            )
        yield from _far_groups(self.classes, "class ")
        lost_conditions = sorted(
            (one for one in self.asked if one.lost(self.samples)), key=lambda one: one.samples or 0.0
        )
        for one in lost_conditions[:_NAMED]:
            yield (
                f"samples do not follow condition {one.name}: what is read off from them agrees with what was asked by "
                f"a correlation of {one.agreement()}"
            )
        yield from _far_groups(self.ranges, "condition ")


def _far_groups(groups: Sequence[GroupReport], what: str) -> Iterator[str]:
    for group in sorted((g for g in groups if g.far), key=lambda g: -(g.told_apart or 0.0))[:_NAMED]:
        yield f"samples of {what}{group.name} are not like the data: a judge tells {group.told_apart:.0%} of them apart"
