"""Judges: how well samples are told from real data, which class they are taken for, how far single columns are apart.

`told_apart` is a classifier two-sample test (Lopez-Paz & Oquab, "Revisiting classifier two-sample tests", ICLR 2017): a
classifier is trained to tell two sets apart, and the share of rows that it gets right, each by trees that have not seen
it, is 50 % up to chance if both sets are of one distribution. Its trees see ranks only, so neither the unit of a column
nor a far-off value hides the rest.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

_TREES, _FOLDS, _FEW = 50, 5, 8
_COMPONENTS, _FITTED = 32, 500
"""Principal components that stand for a picture, and the pictures that they are found on."""


def picture_features(real: NDArray[Any], *sets: NDArray[Any]) -> list[Rows]:
    """Return what a judge sees of pictures (n, *shape): their principal components, and the length of the part outside.

    The components are found on the first of the real pictures. Pixels themselves would give samples away by trifles,
    such as a background that is not exactly black.
    """
    first = flat(real[:_FITTED])
    mean = first.mean(0)
    directions = np.linalg.svd(first - mean, full_matrices=False)[2][:_COMPONENTS]
    features = []
    for samples in sets:
        off = flat(samples) - mean
        within = off @ directions.T
        outside = np.sqrt(np.maximum(np.square(off).sum(1) - np.square(within).sum(1), 0.0))
        features.append(np.concatenate([within, outside[:, None]], axis=1))
    return features


def flat(samples: NDArray[Any]) -> Rows:
    """Return samples (n, *shape) as rows (n, numbers)."""
    return np.asarray(samples, dtype=np.float64).reshape(len(samples), -1)


def told_apart(a: Rows, b: Rows, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Train judges to tell two sets of features, (n, k) and (m, k), apart; each row is judged by one that never saw it.

    Rows in the same place are left out together: samples and real rows there may have the same condition, and a judge
    that had seen one of the two would guess wrong on the other.

    Returns:
        For each row of `a` and of `b` whether its judge was right, 1 or 0 (1/2 if it was undecided).
    """
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    both = ranks(np.concatenate([a, b]), np.concatenate([a, b]))
    truth = np.repeat([0, 1], [len(a), len(b)])
    place = np.random.default_rng(seed).permutation(max(len(a), len(b)))
    fold = np.concatenate([place[: len(a)], place[: len(b)]]) % _FOLDS
    few: Any = None if both.shape[1] <= _FEW else "sqrt"  # columns that a split looks at; None is all
    judge = ExtraTreesClassifier(
        _TREES, min_samples_leaf=3, max_features=few, class_weight="balanced", random_state=seed
    )
    chance: Any = cross_val_predict(judge, both, truth, cv=PredefinedSplit(fold), method="predict_proba")
    right = np.where(chance[:, 0] == chance[:, 1], 0.5, chance.argmax(1) == truth)
    return right[: len(a)], right[len(a) :]


def ranks(rows: Rows, among: Rows) -> Rows:
    """Return the rank in [0, 1] of each number in `rows` (n, k) among those of its column in `among` (m, k)."""
    columns = zip(rows.T, np.sort(among, axis=0).T, strict=True)
    twice = [np.searchsorted(own, x, "left") + np.searchsorted(own, x, "right") for x, own in columns]
    return np.stack(twice, axis=1) / (2 * len(among))


def recover(train: tuple[Rows, NDArray[Any]], *sets: tuple[Rows, NDArray[Any]], seed: int) -> list[list[float | None]]:
    """Train a judge to read conditions off from real features, and test it on other sets.

    Args:
        train: features (n, k) with their conditions, labels (n,) int64 or vectors (n, width).
        sets: the same for each set to test on.
        seed: fixes the judge.

    Returns:
        For each set, the share of the rows of each class that are recognised as their own (None without rows), or for
        each number of a condition vector its correlation with what is read off (None if one of both never changes).
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    labels = train[1].dtype.kind in "iu"
    kind = ExtraTreesClassifier if labels else ExtraTreesRegressor
    judge = kind(_TREES, min_samples_leaf=3, random_state=seed)
    judge.fit(ranks(train[0], train[0]), train[1].squeeze())
    classes = 1 + max(int(conditions.max()) for _, conditions in (train, *sets)) if labels else 0
    recovered = []
    for features, conditions in sets:
        read = np.asarray(judge.predict(ranks(features, train[0]))).reshape(conditions.shape)
        if labels:
            recovered.append(class_shares(read, conditions, classes))
        else:
            recovered.append([_correlation(*both) for both in zip(read.T, conditions.T, strict=True)])
    return recovered


def class_shares(read: NDArray[Any], labels: NDArray[np.int64], classes: int) -> list[float | None]:
    """Return the share of the rows of each class for which its label was read; None for a class without rows."""
    own = [read[labels == label] == label for label in range(classes)]
    return [float(right.mean()) if right.size else None for right in own]


def _correlation(a: Rows, b: Rows) -> float | None:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def rank_correlations(rows: Rows) -> Rows:
    """Return Spearman's correlation of each two columns of (n, k), (k, k); 0 where a column never changes."""
    own = ranks(rows, rows)
    own -= own.mean(0)
    lengths = np.sqrt(np.square(own).sum(0))
    return (own.T @ own) / np.maximum(np.outer(lengths, lengths), 1e-12)


SURE = 0.9
"""The judge is sure of a sample if one class has a probability above this."""


def share_sure(judge: Any, samples: NDArray[Any]) -> float:
    """Return the share of the samples (n, *event) of which a judge (see `train_judge`) is sure."""
    return float((judge.predict_proba(flat(samples)).max(axis=1) > SURE).mean())


_STEPS, _BATCH = 1500, 200  # 200 is scikit-learn's default batch size


def train_judge(
    samples: NDArray[Any], labels: NDArray[np.int64], seed: int = 0, epochs: int | None = None, stop: bool = False
) -> Any:
    """Train scikit-learn's MLPClassifier with one hidden layer of 256 on real data; return it.

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
        model.fit(flat(samples), labels)
    return model
