"""The comparison of samples with held-out data: the numbers of the report on a model (`training.report`)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.conditions import NamedCondition
from training.dataset import DataSet
from training.evaluation import Draw
from training.judges import picture_features, rank_correlations, ranks, recover, told_apart
from training.report import (
    FAR,
    ColumnReport,
    ConditionReport,
    Correlations,
    GroupReport,
    Pair,
    SampleReport,
    by_guessing,
)
from training.spaces import original

_CLOSE = 3.0
"""Standard deviations of guessing within which samples count as not told apart. The sets' trees are not independent: on
data of one distribution, the share varies by about 1.3 of these."""

_OTHERWISE = 0.1
"""Smallest difference of two correlations that is worth a warning."""

_MOST_COLUMNS, _MOST_NUMBERS, _PAIRS = 200, 16, 20
"""Columns of which all pairs are compared, numbers of a condition that are divided into ranges, and pairs reported."""

_SHOWN, _FEW = 12, 10
"""Columns of which all correlations are reported, and rows up to which none are."""

_ROWS = 2000
"""Training rows that judges and distances look at, at most."""

Verdicts = tuple[NDArray[np.float64], NDArray[np.float64]]
"""For each sample and each held-out row, whether the judge of both was right."""

Sets = Sequence[NDArray[Any]]
"""Features (n, k), or conditions (n,) or (n, width), of samples, held-out rows and training rows, in this order."""


def report_on(drawn: Draw, data: DataSet, seed: int) -> SampleReport:
    """Compare samples with held-out data.

    Args:
        drawn: samples, at least one of which reached t = 1, drawn with the conditions of the reference.
        data: training and held-out data.
        seed: fixes the judges.
    """
    columns, features = _features(drawn, data)
    conditions: Sets = ()
    everything: Sets = ()  # the same with all training rows
    if data.conditions is not None and data.reference_conditions is not None:
        unseen = data.reference_conditions[: drawn.requested]
        everything = (unseen[drawn.rows], unseen, data.conditions)
        conditions = (*everything[:2], data.conditions[:_ROWS])
    joint = features
    if conditions:
        joint = [np.concatenate([x, c.reshape(len(x), -1)], axis=1) for x, c in zip(features, conditions, strict=True)]
    verdicts, count = told_apart(joint[0], joint[1], seed), min(len(joint[1]), len(joint[2]))
    report = SampleReport(
        samples=drawn.requested,
        failed=drawn.failed,
        reference=data.reference_text,
        solver=drawn.solver,
        told_apart=_mean(verdicts),
        real_told_apart=_mean(told_apart(joint[2][:count], joint[1][:count], seed)),
        by_chance=0.5 + _CLOSE * by_guessing(sum(map(len, verdicts))),
        nearer=_nearer(features),
        columns=_columns(columns, features) if columns else [],
        **_correlated(columns, features),
    )
    if not conditions or data.condition is None:
        return report
    samples, unseen, train = zip(features, conditions, strict=True)
    recovered, recovered_real = recover(train, samples, unseen, seed=seed)
    if conditions[0].dtype.kind in "iu":
        return replace(report, classes=_by_class(everything, data.condition, verdicts, recovered, recovered_real))
    names = data.condition_names
    asked = [ConditionReport(*number) for number in zip(names, recovered, recovered_real, strict=True)]
    return replace(report, ranges=_by_range(everything, data.condition, names, verdicts), asked=asked)


def _features(drawn: Draw, data: DataSet) -> tuple[list[str], Sets]:
    """Return what judges see: of rows, their columns and these columns' names, else features of pictures."""
    states = (drawn.states, data.reference[: drawn.requested], data.train[:_ROWS])
    config = data.decoder.config
    if len(config.data_shape) > 1 or config.kind not in ("affine", "identity"):
        return [], picture_features(states[2], *states)
    names = [column.name for column in config.columns or ()] or [str(k) for k in range(states[0].shape[1])]
    return names, [data.decoder.decode(torch.from_numpy(np.asarray(x, np.float32))).double().numpy() for x in states]


def _mean(verdicts: Sequence[NDArray[np.float64]]) -> float:
    return float((verdicts[0].mean() + verdicts[1].mean()) / 2)


def _nearer(features: Sets) -> float:
    """Return the share of samples nearer to a training row than the median held-out row; ties count half."""
    from scipy.spatial.distance import cdist

    own = [ranks(x, features[2]) for x in features]
    samples, unseen = (cdist(x, own[2]).min(1) for x in own[:2])
    middle = np.median(unseen)
    return float(((samples < middle) + 0.5 * (samples == middle)).mean())


def _columns(names: Sequence[str], features: Sets) -> list[ColumnReport]:
    from scipy.stats import ks_2samp

    # The asymptotic quantile of the two-sample distance at 0.1 %, shared by all columns (Bonferroni).
    level = np.sqrt(-np.log(0.001 / len(names) / 2) / 2)
    by_chance = float(level * np.sqrt(sum(1 / len(x) for x in features[:2])))
    columns = []
    for name, *values in zip(names, features[0].T, features[1].T, strict=True):
        test: Any = ks_2samp(*values, method="asymp")
        quantiles = [np.quantile(column, [0.025, 0.5, 0.975]).tolist() for column in values]
        columns.append(ColumnReport(name, float(test.statistic), by_chance, *quantiles))
    return columns


def _correlated(names: list[str], features: Sets) -> dict[str, Any]:
    """Return the correlations, and the pairs of columns in which they differ by more than chance (Fisher's z)."""
    samples, _, train = features
    if not 2 <= len(names) <= _MOST_COLUMNS or min(len(samples), len(train)) <= _FEW:
        return {}
    own, data = rank_correlations(samples), rank_correlations(train)
    by_chance = FAR * np.sqrt(1 / (len(samples) - 3) + 1 / (len(train) - 3))
    z = np.abs(np.arctanh(np.clip(own, -0.999, 0.999)) - np.arctanh(np.clip(data, -0.999, 0.999)))
    off = np.where((z > by_chance) & (np.abs(own - data) > _OTHERWISE), np.abs(own - data), 0.0)
    places = zip(*np.nonzero(np.triu(off, 1)), strict=True)
    worst = sorted(places, key=lambda place: -off[place])
    pairs = [Pair([names[i], names[j]], float(own[i, j]), float(data[i, j])) for i, j in worst[:_PAIRS]]
    first = np.s_[:_SHOWN, :_SHOWN]
    return {"pairs": pairs, "correlations": Correlations(names[:_SHOWN], own[first].tolist(), data[first].tolist())}


def _by_class(
    conditions: Sets, condition: NamedCondition, verdicts: Verdicts, recovered: Sequence[Any], real: Sequence[Any]
) -> list[GroupReport]:
    """Return each class; conditions are those of samples, held-out rows and all training rows."""
    shares = zip_longest(condition.names or range(condition.classes or 0), recovered, real)
    return [
        _group(str(name), [labels == label for labels in conditions], verdicts, *both)
        for label, (name, *both) in enumerate(shares)
    ]


def _by_range(
    conditions: Sets, condition: NamedCondition, names: Sequence[str], verdicts: Verdicts
) -> list[GroupReport]:
    """Return the thirds of each number of the condition, or its values if there are at most three; see `_by_class`."""
    groups = []
    values = [original(condition, vectors).T for vectors in conditions]
    for name, *numbers in list(zip(names, *values, strict=True))[:_MOST_NUMBERS]:
        edges = np.unique(np.quantile(numbers[2], [0, 1 / 3, 2 / 3, 1]))
        for low, high in pairwise(edges):
            last = high == edges[-1]
            within = [(own >= low) & ((own <= high) if last else (own < high)) for own in numbers]
            groups.append(_group(f"{name} from {low:.4g} to {high:.4g}", within, verdicts))
    return groups


def _group(
    name: str, within: Sequence[NDArray[np.bool_]], verdicts: Verdicts, *recognised: float | None
) -> GroupReport:
    """Return what was found of the samples, held-out rows and training rows that are within a group."""
    own = [right[rows] for right, rows in zip(verdicts, within[:2], strict=True)]
    told_apart = _mean(own) if all(map(len, own)) else None
    return GroupReport(name, int(within[1].sum()), int(within[2].sum()), told_apart, *recognised)
