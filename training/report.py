"""Is it any good? The report on a trained model: its samples against held-out data, in numbers and in words.

It compares all samples, each column, each class and each range of a condition, and asks whether samples follow their
condition, whether columns are correlated as in the data, and whether the network has memorised its training data. Every
share comes with what real data give and with what chance gives, so that noise is not taken for a fault, or for quality.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.dataset import DataSet
from training.evaluation import Draw
from training.judges import (
    Features,
    Recovery,
    Rows,
    chance_of,
    column_distances,
    nearest,
    quantiles,
    rank_correlations,
    ranks,
    recover,
    told_apart,
)
from training.spaces import original

_CLOSE = 3.0
"""Standard deviations of guessing within which samples count as not told apart. The sets' trees are not independent: on
data of one distribution, the share varies by about 1.3 of these."""

_FAR, _FAR_SHARE = 4.0, 0.65
"""A set of samples is not like the data if it is told apart in more than this share, and beyond chance by so many."""

_LOST = 0.15
"""A condition is not followed if samples fall short of real data by more than this, and by more than chance."""

_APART = 0.15
"""Smallest distance of a column (Kolmogorov and Smirnov's) that is worth a warning."""

_FEW = 10
"""Training rows of a class below which its samples are not to be trusted."""

_NAMED = 3
"""Columns, classes or pairs that a sentence names, the worst first."""

_OTHERWISE = 0.1
"""Smallest difference of two correlations that is worth a warning."""

_MOST_COLUMNS, _MOST_NUMBERS, _KEPT = 200, 16, 20
"""Columns of which all pairs are compared, numbers of a condition that are divided into ranges, and pairs kept."""

_SHOWN = 12
"""Columns of which all correlations are reported."""

_ROWS = 2000
"""Training rows that judges and distances look at, at most."""


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
        return self.recognised < self.recognised_real - max(_LOST, _FAR * chance_of(self.rows))


@dataclass(frozen=True)
class ConditionReport:
    """How well samples follow one number of a condition vector.

    Attributes:
        name: the number's name, or its place in the condition from 0.
        samples, data: correlation of the condition with what a judge, trained on real data, reads off from samples and
            from held-out rows; None if the condition never changes.
    """

    name: str
    samples: float | None
    data: float | None

    @property
    def shown(self) -> bool:
        """Whether real data show this number of their condition."""
        return self.data is not None and self.data > 0.3


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
        return self.failed > self.samples // 10 or _is_far(self.told_apart, 2 * (self.samples - self.failed))

    @property
    def warnings(self) -> list[str]:
        """Sentences on what is wrong, the worst first."""
        return [*self._whole(), *self._classes(), *self._ranges(), *self._columns(), *self._pairs(), *self._memory()]

    def lines(self) -> Iterator[str]:
        """Yield the report in words."""
        yield f"is it any good? {self.samples:,} samples by {self.solver} against {self.reference}"
        if not self.broken:
            close = self.told_apart < self.by_chance
            yield f"samples {'cannot be told from' if close else 'are close to'} unseen data: {self._share()}"
        yield from self._praise()
        if not self.broken:
            yield from self._details()
        for warning in self.warnings:
            yield f"WARNING: {warning}"

    def record(self) -> dict[str, Any]:
        """Return the report as JSON-ready data, its sentences included."""
        return {**asdict(self), "warnings": self.warnings, "words": list(self.lines())}

    def _share(self) -> str:
        return (
            f"a judge is right in {_percent(self.told_apart)} of cases (50% is guessing, less than "
            f"{_percent(self.by_chance)} may be chance; training rows from unseen: {_percent(self.real_told_apart)})"
        )

    def _whole(self) -> Iterator[str]:
        if self.failed:
            yield f"{self.failed} of {self.samples} samples did not reach t = 1"
        if _is_far(self.told_apart, 2 * (self.samples - self.failed)):
            yield f"samples are not like the data: {self._share()}"

    def _praise(self) -> Iterator[str]:
        """Yield what is right about the condition, or cannot be judged."""
        own = [group for group in self.classes if group.recognised is not None and group.recognised_real is not None]
        if own and not any(group.lost for group in own):
            samples, data = (
                np.average([getattr(group, name) for group in own], weights=[group.rows for group in own])
                for name in ("recognised", "recognised_real")
            )
            yield f"samples follow their class: {samples:.0%} are recognised as it (unseen data: {data:.0%})"
        shown = [one for one in self.asked if one.shown]
        if shown and not any(self._is_lost(one) for one in shown):
            worst = min(shown, key=lambda one: one.samples or 0.0)
            yield (
                f"samples follow the condition: what is read off from them agrees with what was asked, correlation "
                f"{worst.samples or 0.0:.2f} (unseen data: {worst.data:.2f})"
            )
        if self.asked and not shown:
            yield "the data themselves hardly show their condition, so whether samples follow it cannot be judged"

    def _details(self) -> Iterator[str]:
        """Yield the rest of what is right, and by how much."""
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
        if not list(self._memory()):
            yield (
                f"no sign of memorising: {self.nearer:.0%} of samples lie nearer to a training row than half of the "
                "unseen rows do (50% is right)"
            )

    def _is_lost(self, one: ConditionReport) -> bool:
        if not one.shown or one.data is None:
            return False
        return (one.samples or 0.0) < one.data - max(_LOST, _FAR / np.sqrt(max(1, self.samples)))

    def _classes(self) -> Iterator[str]:
        for group in self.classes:
            if group.trained < _FEW:
                rows = "no training row" if not group.trained else f"only {group.trained} training rows"
                yield f"class {group.name} has {rows}: its samples are not to be trusted"
        lost = sorted((g for g in self.classes if g.lost), key=lambda g: g.recognised or 0.0)
        for group in lost[:_NAMED]:
            yield (
                f"samples do not follow class {group.name}: {group.recognised:.0%} are recognised as it (unseen data: "
                f"{group.recognised_real:.0%})"
            )
        yield from _far_groups(self.classes, "class ")

    def _ranges(self) -> Iterator[str]:
        lost = [one for one in self.asked if self._is_lost(one)]
        for one in sorted(lost, key=lambda one: one.samples or 0.0)[:_NAMED]:
            yield (
                f"samples do not follow condition {one.name}: what is read off from them agrees with what was asked by "
                f"a correlation of {one.samples or 0.0:.2f} (unseen data: {one.data:.2f})"
            )
        yield from _far_groups(self.ranges, "condition ")

    def _columns(self) -> Iterator[str]:
        far = sorted((column for column in self.columns if column.far), key=lambda column: -column.distance)
        for column in far[:_NAMED]:
            (low, _, high), (least, _, most) = column.samples, column.data
            yield (
                f"column {column.name} differs from the data: 95 % of samples lie from {low:.4g} to {high:.4g}, of "
                f"unseen rows from {least:.4g} to {most:.4g}"
            )
        if len(far) > _NAMED:
            yield f"{len(far) - _NAMED} more columns differ from the data"

    def _pairs(self) -> Iterator[str]:
        for pair in self.pairs[:_NAMED]:
            less = "less" if abs(pair.samples) < abs(pair.data) else "otherwise"
            yield (
                f"{' and '.join(pair.columns)} are {less} correlated in samples ({pair.samples:.2f}) than in the data "
                f"({pair.data:.2f}): train longer"
            )

    def _memory(self) -> Iterator[str]:
        if _is_far(self.nearer, self.samples - self.failed) and self.nearer > 0.75:
            yield (
                f"{self.nearer:.0%} of samples lie nearer to a training row than half of the unseen rows do: the "
                "network memorises; train it less, or on more data"
            )


def _percent(share: float) -> str:
    """Return the share that a judge got right as text; one that was wrong more often than right has guessed."""
    return f"{max(share, 0.5):.0%}"


def _is_far(share: float, rows: int) -> bool:
    return share > max(_FAR_SHARE, 0.5 + _FAR * chance_of(max(1, rows)))


def _far_groups(groups: Sequence[GroupReport], what: str) -> Iterator[str]:
    for group in sorted((g for g in groups if g.far), key=lambda g: -(g.told_apart or 0.0))[:_NAMED]:
        yield f"samples of {what}{group.name} are not like the data: a judge tells {group.told_apart:.0%} of them apart"


def report_on(drawn: Draw, data: DataSet, seed: int) -> SampleReport:
    """Compare samples with held-out data.

    Args:
        drawn: samples, at least one of which reached t = 1, drawn with the conditions of the reference.
        data: training and held-out data.
        seed: fixes the judges.
    """
    sets = _Sets.of(drawn, data)
    right = told_apart(sets.joint(0), sets.joint(1), seed)
    whole = SampleReport(
        samples=drawn.asked,
        failed=drawn.failed,
        reference=data.reference_text,
        solver=drawn.solver,
        told_apart=_mean(right),
        real_told_apart=_real_told_apart(sets, seed),
        by_chance=0.5 + _CLOSE * chance_of(len(right[0]) + len(right[1])),
        nearer=_nearer(sets),
    )
    if sets.columns:
        whole = replace(whole, columns=_columns(sets), **_correlated(sets))
    if sets.conditions is None:
        return whole
    samples, unseen, train = zip(sets.features, sets.conditions, strict=True)
    recovery = recover(train, unseen, samples, seed)
    if sets.conditions[0].dtype.kind in "iu":
        return replace(whole, classes=_by_class(sets, data, right, recovery))
    names, found = _condition_names(data), zip(recovery.samples, recovery.real, strict=True)
    asked = [ConditionReport(name, *both) for name, both in zip(names, found, strict=True)]
    return replace(whole, ranges=_by_range(sets, data, right), asked=asked)


Right = tuple[NDArray[np.float64], NDArray[np.float64]]
"""For each sample and each held-out row, whether the judge of both was right."""


@dataclass(frozen=True)
class _Sets:
    """Samples, held-out rows and training rows, in this order, as judges see them.

    Attributes:
        features: of each set, (n, k).
        conditions: of each set, labels (n,) or vectors (n, width), or None.
        columns: names of the columns, if the data are rows and the features are their columns; else empty.
    """

    features: tuple[Rows, Rows, Rows]
    conditions: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None
    columns: list[str]

    @classmethod
    def of(cls, drawn: Draw, data: DataSet) -> "_Sets":
        states = (drawn.states, data.reference[: drawn.asked], data.train[:_ROWS])
        config = data.decoder.config
        columns: list[str] = []
        if len(config.data_shape) == 1 and config.kind in ("affine", "identity"):
            columns = [column.name for column in config.columns or ()] or [str(k) for k in range(states[0].shape[1])]
            rows = [data.decoder.decode(torch.from_numpy(np.asarray(x, np.float32))).double().numpy() for x in states]
        else:
            features = Features(states[2])
            rows = [features(x) for x in states]
        conditions = None
        if data.conditions is not None and data.reference_conditions is not None:
            unseen = data.reference_conditions[: drawn.asked]
            conditions = (unseen[drawn.rows], unseen, data.conditions[:_ROWS])
        return cls((rows[0], rows[1], rows[2]), conditions, columns)

    def joint(self, k: int) -> Rows:
        """Return the features of a set with its conditions beside them."""
        if self.conditions is None:
            return self.features[k]
        return np.concatenate([self.features[k], self.conditions[k].reshape(len(self.features[k]), -1)], axis=1)


def _mean(right: Right) -> float:
    return float((right[0].mean() + right[1].mean()) / 2)


def _real_told_apart(sets: _Sets, seed: int) -> float:
    count = min(len(sets.features[1]), len(sets.features[2]))
    return _mean(told_apart(sets.joint(2)[:count], sets.joint(1)[:count], seed))


def _nearer(sets: _Sets) -> float:
    """Return the share of samples nearer to a training row than the median held-out row; ties count half."""
    own = [ranks(x, sets.features[2]) for x in sets.features]
    samples, unseen = (nearest(x, own[2]) for x in own[:2])
    middle = np.median(unseen)
    return float(((samples < middle) + 0.5 * (samples == middle)).mean())


def _columns(sets: _Sets) -> list[ColumnReport]:
    samples, real = sets.features[:2]
    distances = column_distances(samples, real)
    # The asymptotic quantile of the two-sample distance at 0.1 %, shared by all columns (Bonferroni).
    level = np.sqrt(-np.log(0.001 / len(distances) / 2) / 2)
    by_chance = float(level * np.sqrt(1 / len(samples) + 1 / len(real)))
    return [
        ColumnReport(name, float(distance), by_chance, quantiles(samples[:, k]), quantiles(real[:, k]))
        for k, (name, distance) in enumerate(zip(sets.columns, distances, strict=True))
    ]


def _correlated(sets: _Sets) -> dict[str, Any]:
    """Return the correlations, and the pairs of columns in which they differ by more than chance (Fisher's z)."""
    names, (samples, _, train) = sets.columns, sets.features
    if not 2 <= len(names) <= _MOST_COLUMNS or min(len(samples), len(train)) <= _FEW:
        return {}
    own, data = rank_correlations(samples), rank_correlations(train)
    by_chance = _FAR * np.sqrt(1 / (len(samples) - 3) + 1 / (len(train) - 3))
    z = np.abs(np.arctanh(np.clip(own, -0.999, 0.999)) - np.arctanh(np.clip(data, -0.999, 0.999)))
    off = np.where((z > by_chance) & (np.abs(own - data) > _OTHERWISE), np.abs(own - data), 0.0)
    places = zip(*np.nonzero(np.triu(off, 1)), strict=True)
    worst = sorted(places, key=lambda place: -off[place])
    pairs = [Pair([names[i], names[j]], float(own[i, j]), float(data[i, j])) for i, j in worst[:_KEPT]]
    first = np.s_[:_SHOWN, :_SHOWN]
    return {"pairs": pairs, "correlations": Correlations(names[:_SHOWN], own[first].tolist(), data[first].tolist())}


def _by_class(sets: _Sets, data: DataSet, right: Right, recovery: Recovery) -> list[GroupReport]:
    assert sets.conditions is not None  # noqa: S101  (the caller checks)
    assert data.conditions is not None  # noqa: S101
    given: Any = data.condition  # labels come with a number of classes
    names = given.names or [str(label) for label in range(given.classes)]
    trained = np.bincount(data.conditions, minlength=given.classes)
    found = []
    for label, name in enumerate(names):
        seen = label < len(recovery.samples)
        found.append(
            GroupReport(
                name=str(name),
                rows=int((sets.conditions[1] == label).sum()),
                trained=int(trained[label]),
                told_apart=_share(right, [of == label for of in sets.conditions[:2]]),
                recognised=recovery.samples[label] if seen else None,
                recognised_real=recovery.real[label] if seen else None,
            )
        )
    return found


def _condition_names(data: DataSet) -> list[str]:
    """Return the names of the numbers of a condition vector, or their places from 0."""
    assert data.conditions is not None  # noqa: S101  (callers check)
    width = data.conditions.shape[1]
    return list(data.condition_names) if len(data.condition_names) == width else [str(k) for k in range(width)]


def _by_range(sets: _Sets, data: DataSet, right: Right) -> list[GroupReport]:
    """Return the thirds of each number of the condition, or its values if there are at most three."""
    assert sets.conditions is not None  # noqa: S101
    assert data.condition is not None  # noqa: S101
    names, values = _condition_names(data), [original(data.condition, of) for of in sets.conditions]
    train, found = values[2], []
    for k in range(min(train.shape[1], _MOST_NUMBERS)):
        edges = np.unique(np.quantile(train[:, k], [0, 1 / 3, 2 / 3, 1]))
        for place, (low, high) in enumerate(pairwise(edges)):
            last = place == len(edges) - 2
            within = [(c[:, k] >= low) & ((c[:, k] <= high) if last else (c[:, k] < high)) for c in values]
            name = f"{names[k]} from {low:.4g} to {high:.4g}"
            found.append(GroupReport(name, int(within[1].sum()), int(within[2].sum()), _share(right, within[:2])))
    return found


def _share(right: Right, within: Sequence[NDArray[np.bool_]]) -> float | None:
    """Return how often the judge was right on the samples and held-out rows selected; None without any."""
    own = [one[rows] for one, rows in zip(right, within, strict=True)]
    return _mean((own[0], own[1])) if all(len(one) for one in own) else None
