"""A judge of samples: scikit-learn's classifier, trained on real data, asked for a class and how sure it is."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SURE = 0.9
"""The probability of one class over which the judge counts as sure."""

_STEPS, _BATCH = 1500, 200  # 200 is scikit-learn's own size of a batch


@dataclass(frozen=True)
class Judge:
    """A trained classifier.

    Attributes:
        model: scikit-learn's MLPClassifier.
    """

    model: Any

    def probabilities(self, samples: NDArray[Any]) -> NDArray[np.float64]:
        """The probability of each class that it was shown, in their order, for samples (n, *event): (n, classes)."""
        return self.model.predict_proba(np.asarray(samples, dtype=np.float64).reshape(len(samples), -1))

    def named(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """The class that it takes each of the samples (n, *event) for, (n,)."""
        return np.asarray(self.model.classes_)[self.probabilities(samples).argmax(axis=1)].astype(np.int64)

    def sure(self, samples: NDArray[Any]) -> float:
        """Share of the samples (n, *event) that it gives a probability over 0.9 to be of one certain class."""
        return float((self.probabilities(samples).max(axis=1) > SURE).mean())


def train_judge(
    samples: NDArray[Any], labels: NDArray[np.int64], seed: int = 0, epochs: int | None = None, stop: bool = False
) -> Judge:
    """Train one hidden layer of 256 on real data.

    Args:
        samples: (n, *event), each coordinate of a size near 1.
        labels: their classes, (n,).
        seed: fixes the first weights and the order.
        epochs: the most passes over the samples; by default as many as make 1,500 steps, at least 10.
        stop: hold out a tenth, and stop when it is named no better for ten passes. With a few thousand samples that
            is too early for a judge that is to be sure of real ones.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    epochs = max(10, -(-_STEPS * _BATCH // len(samples))) if epochs is None else epochs
    model = MLPClassifier((256,), alpha=1e-3, max_iter=epochs, early_stopping=stop, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the epochs are what was asked for
        model.fit(np.asarray(samples, dtype=np.float64).reshape(len(samples), -1), labels)
    return Judge(model)
