"""Judges: how well samples are told from real data, which class they are taken for, how far single columns are apart.

`told_apart` is a classifier two-sample test (Lopez-Paz & Oquab, "Revisiting classifier two-sample tests", ICLR 2017): a
classifier is trained to tell two sets apart, and the share of rows that it gets right, each by trees that have not seen
it, is 50 % up to chance if both sets are of one distribution. Its trees see ranks only, so neither the unit of a column
nor a far-off value hides the rest.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

_TREES, _FOLDS, _FEW = 50, 5, 8
_COMPONENTS, _FITTED = 32, 500
"""Principal components that stand for a picture, and the pictures that they are found on."""


class Features:
    """What a judge sees of a picture: its first principal components, and the length of the part outside them.

    Pixels themselves would give samples away by trifles, such as a background that is not exactly black.
    """

    def __init__(self, real: NDArray[Any]) -> None:
        """Fit to real data (n, *shape)."""
        flat = _flat(real[:_FITTED])
        self._mean = flat.mean(0)
        self._directions = np.linalg.svd(flat - self._mean, full_matrices=False)[2][:_COMPONENTS]

    def __call__(self, samples: NDArray[Any]) -> Rows:
        """Return the features (n, k) of samples (n, *shape)."""
        off = _flat(samples) - self._mean
        within = off @ self._directions.T
        rest = np.sqrt(np.maximum(np.square(off).sum(1) - np.square(within).sum(1), 0.0))
        return np.concatenate([within, rest[:, None]], axis=1)


def _flat(samples: NDArray[Any]) -> Rows:
    return np.asarray(samples, dtype=np.float64).reshape(len(samples), -1)


def told_apart(a: Rows, b: Rows, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Train judges to tell two sets of features, (n, k) and (m, k), apart; each row is judged by one that never saw it.

    Rows in the same place are left out together: samples and real rows there may have the same condition, and a judge
    that had seen one of the two would guess wrong on the other.

    Returns:
        For each row of `a` and of `b` whether its judge was right, 1 or 0 (1/2 if it was undecided).
    """
    from sklearn.ensemble import ExtraTreesClassifier

    both = ranks(np.concatenate([a, b]), np.concatenate([a, b]))
    truth = np.repeat([0, 1], [len(a), len(b)])
    place = np.random.default_rng(seed).permutation(max(len(a), len(b)))
    fold = np.concatenate([place[: len(a)], place[: len(b)]]) % _FOLDS
    few: Any = None if both.shape[1] <= _FEW else "sqrt"  # columns that a split looks at; None is all
    right = np.zeros(len(both))
    for out in (fold == k for k in range(_FOLDS)):
        judge = ExtraTreesClassifier(
            _TREES, min_samples_leaf=3, max_features=few, class_weight="balanced", random_state=seed
        )
        chance = judge.fit(both[~out], truth[~out]).predict_proba(both[out])
        right[out] = np.where(chance[:, 0] == chance[:, 1], 0.5, chance.argmax(1) == truth[out])
    return right[: len(a)], right[len(a) :]


def ranks(of: Rows, among: Rows) -> Rows:
    """Return the rank in [0, 1] of each number in `of` (n, k) among those of its column in `among` (m, k)."""
    ordered = np.sort(among, axis=0)
    columns = range(of.shape[1])
    below = [np.searchsorted(ordered[:, k], of[:, k], side) for k in columns for side in ("left", "right")]
    return np.stack([(below[2 * k] + below[2 * k + 1]) / (2 * len(among)) for k in columns], axis=1)


def chance_of(rows: float) -> float:
    """Return the standard deviation of the share that a judge gets right by guessing, on a number of rows."""
    return 0.5 / math.sqrt(rows)


def column_distances(a: Rows, b: Rows) -> NDArray[np.float64]:
    """Return Kolmogorov and Smirnov's distance of each column of `a` (n, k) and `b` (m, k), from 0 to 1: (k,).

    It is the largest difference of the shares of rows at or below any value.
    """
    both = np.concatenate([a, b])
    cumulated = [
        np.stack([np.searchsorted(np.sort(x[:, k]), both[:, k], "right") for k in range(x.shape[1])], axis=1) / len(x)
        for x in (a, b)
    ]
    return np.abs(cumulated[0] - cumulated[1]).max(0)


@dataclass(frozen=True)
class Recovery:
    """How well conditions can be read off from samples by a judge that was trained on real data.

    Attributes:
        real, samples: for each class the share of rows that are recognised as their own (None without rows), or for
            each number of a condition vector its correlation with what is read off.
    """

    real: list[float | None]
    samples: list[float | None]


def recover(
    train: tuple[Rows, NDArray[Any]], real: tuple[Rows, NDArray[Any]], samples: tuple[Rows, NDArray[Any]], seed: int
) -> Recovery:
    """Train a judge to read conditions off from features, and test it on unseen real data and on samples.

    Args:
        train, real, samples: features (n, k) with their conditions, labels (n,) int64 or vectors (n, width).
        seed: fixes the judge.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    labels = train[1].dtype.kind in "iu"
    kind = ExtraTreesClassifier if labels else ExtraTreesRegressor
    judge = kind(_TREES, min_samples_leaf=3, random_state=seed)
    judge.fit(ranks(train[0], train[0]), train[1].squeeze())
    read = [np.asarray(judge.predict(ranks(x, train[0]))).reshape(c.shape) for x, c in (real, samples)]
    if labels:
        classes = range(1 + int(max(train[1].max(), real[1].max())))
        found = [
            [float((got[of == k] == k).mean()) if (of == k).any() else None for k in classes]
            for got, (_, of) in zip(read, (real, samples), strict=True)
        ]
    else:
        found = [[_correlation(got[:, k], of[:, k]) for k in range(of.shape[1])]
                 for got, (_, of) in zip(read, (real, samples), strict=True)]  # fmt: skip
    return Recovery(*found)


def _correlation(a: Rows, b: Rows) -> float | None:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def rank_correlations(rows: Rows) -> Rows:
    """Return Spearman's correlation of each two columns of (n, k), (k, k); 0 where a column never changes."""
    own = ranks(rows, rows)
    own -= own.mean(0)
    lengths = np.sqrt(np.square(own).sum(0))
    return (own.T @ own) / np.maximum(np.outer(lengths, lengths), 1e-12)


def nearest(of: Rows, among: Rows) -> NDArray[np.float64]:
    """Return the distance of each row of `of` (n, k) to the nearest in `among` (m, k): (n,)."""
    from scipy.spatial.distance import cdist

    return np.concatenate([cdist(part, among).min(1) for part in np.array_split(of, max(1, len(of) // 500))])


def quantiles(column: Rows) -> list[float]:
    """Return the values below which 2.5 %, 50 % and 97.5 % of a column lie."""
    return np.quantile(column, [0.025, 0.5, 0.975]).tolist()


SURE = 0.9
"""The judge is sure of a sample if one class has a probability above this."""

_STEPS, _BATCH = 1500, 200  # 200 is scikit-learn's default batch size


@dataclass(frozen=True)
class Judge:
    """A trained classifier.

    Attributes:
        model: scikit-learn's MLPClassifier.
    """

    model: Any

    def probabilities(self, samples: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of each trained class, in order, for samples (n, *event): (n, classes)."""
        return self.model.predict_proba(np.asarray(samples, dtype=np.float64).reshape(len(samples), -1))

    def named(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """Return the most probable class of each of the samples (n, *event): (n,)."""
        return np.asarray(self.model.classes_)[self.probabilities(samples).argmax(axis=1)].astype(np.int64)

    def sure(self, samples: NDArray[Any]) -> float:
        """Return the share of the samples (n, *event) for which one class has a probability over 0.9."""
        return float((self.probabilities(samples).max(axis=1) > SURE).mean())


def train_judge(
    samples: NDArray[Any], labels: NDArray[np.int64], seed: int = 0, epochs: int | None = None, stop: bool = False
) -> Judge:
    """Train one hidden layer of 256 on real data.

    Args:
        samples: (n, *event), with coordinates of magnitude about 1.
        labels: their classes, (n,).
        seed: fixes the initial weights and the order.
        epochs: maximum number of passes over the samples; the default makes 1,500 steps, in at least 10 passes.
        stop: hold out a tenth, and stop if its accuracy has not improved for ten passes. With only a few thousand
            samples, that is too early for the judge to be sure of real ones.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    epochs = max(10, -(-_STEPS * _BATCH // len(samples))) if epochs is None else epochs
    model = MLPClassifier((256,), alpha=1e-3, max_iter=epochs, early_stopping=stop, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is fixed on purpose
        model.fit(np.asarray(samples, dtype=np.float64).reshape(len(samples), -1), labels)
    return Judge(model)
