"""The classifier that judges MNIST samples, trained on real digits in the principal components of the samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from training import judges, mnist
from training.judges import SURE, flat
from training.mnist import labels

__all__ = ["SURE", "Judge", "project", "train_judge"]

_EPOCHS = 30  # enough for this purpose


@dataclass(frozen=True)
class Judge:
    """A trained classifier of digits.

    Attributes:
        model: see `training.judges.train_judge`.
        accuracy: share of MNIST's 10,000 test digits that it classifies correctly.
        digits: number of real digits it was trained on.
    """

    model: Any
    accuracy: float
    digits: int

    def classes(self, latent: NDArray[Any]) -> NDArray[np.int64]:
        """Return how many of the digits (n, components) it classifies as 0, 1, ..., 9."""
        return np.bincount(self.model.predict(flat(latent)), minlength=10)

    def sure(self, latent: NDArray[Any]) -> float:
        """Return the share of the digits (n, components) for which one class has a probability over 0.9."""
        return judges.share_sure(self.model, latent)


def train_judge(data_dir: Path | None, decoder: Decoder, digits: int, seed: int = 0) -> Judge:
    """Train on real digits.

    Args:
        data_dir: as for `mnist.load`; the label files are in the same folder as the pictures.
        decoder: the PCA decoder of the model under test.
        digits: number of the 60,000 training digits to use.
        seed: fixes their choice and the classifier's initial weights.

    Raises:
        DataError: pictures or labels are missing or damaged.
    """
    train, test, _ = mnist.load(data_dir)
    train_labels, test_labels = labels(data_dir, len(train), len(test))
    chosen = np.random.default_rng(seed).permutation(len(train))[:digits]
    model = judges.train_judge(project(decoder, train[chosen]), train_labels[chosen], seed, _EPOCHS, stop=True)
    accuracy = float((model.predict(project(decoder, test)) == test_labels).mean())
    return Judge(model, accuracy, len(chosen))


def project(decoder: Decoder, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return principal components of pictures (n, 784) of 0 ... 255, scaled like the flow's samples."""
    mean, components, scale = (
        tensor.to(torch.float64).numpy() for tensor in (decoder.mean, decoder.components, decoder.latent_scale)
    )
    return (pixels.astype(np.float64) / 255 - mean) @ components.T / scale
