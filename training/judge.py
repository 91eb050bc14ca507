"""Judge of samples: a scikit-learn classifier, trained on real data, that names a class and how sure it is."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
