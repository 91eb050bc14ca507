"""A judge of digits: scikit-learn's classifier on real MNIST digits, asked how sure it is of a sample."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from training import mnist
from training.labels import labels

SURE = 0.9


@dataclass(frozen=True)
class Judge:
    """A trained classifier.

    Attributes:
        model: scikit-learn's MLPClassifier on principal components.
        accuracy: share of MNIST's 10,000 test digits that it names rightly.
        digits: how many real digits it was trained on.
    """

    model: Any
    accuracy: float
    digits: int

    def sure(self, latent: NDArray[Any]) -> float:
        """Share of digits (n, components) that it gives a probability over 0.9 to be one certain digit."""
        return float((self.model.predict_proba(np.asarray(latent, dtype=np.float64)).max(axis=1) > SURE).mean())

    def classes(self, latent: NDArray[Any]) -> NDArray[np.int64]:
        """How many of the digits (n, components) it takes for a 0, 1, ..., 9."""
        return np.bincount(self.model.predict(np.asarray(latent, dtype=np.float64)).astype(int), minlength=10)


def train_judge(data_dir: Path | None, decoder: Decoder, digits: int, seed: int = 0) -> Judge:
    """Train on real digits, in the principal components that samples have, too.

    Args:
        data_dir: as for `mnist.load`; the label files lie beside the pictures.
        decoder: the PCA decoder of the model that is judged.
        digits: how many of the 60,000 training digits are used.
        seed: fixes their choice and the classifier's first weights.

    Raises:
        DataError: pictures or labels are missing or damaged.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    train, test, _ = mnist.load(data_dir)
    train_labels, test_labels = labels(data_dir, len(train), len(test))
    chosen = np.random.default_rng(seed).permutation(len(train))[:digits]
    model = MLPClassifier((256,), alpha=1e-3, max_iter=30, early_stopping=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 30 epochs are enough for what is asked
        model.fit(project(decoder, train[chosen]), train_labels[chosen])
    accuracy = float(model.score(project(decoder, test), test_labels))
    return Judge(model, accuracy, len(chosen))


def project(decoder: Decoder, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Principal components of pictures (n, 784) of 0 ... 255, scaled as the flow's samples are."""
    mean, components, scale = (
        tensor.to(torch.float64).numpy() for tensor in (decoder.mean, decoder.components, decoder.latent_scale)
    )
    return (pixels.astype(np.float64) / 255 - mean) @ components.T / scale
