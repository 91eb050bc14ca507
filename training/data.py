"""The data sets: what the network is trained on, what it is judged against, and the way back to the data's own form."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import Decoder
from training import draws, mnist
from training.config import DigitsData, MnistData, PointsData, Recipe
from training.draws import Purpose
from training.errors import DataError

Array = NDArray[np.float32]


@dataclass(frozen=True)
class DataSet:
    """One data set, ready for training.

    Attributes:
        train: the training samples as the network sees them, (samples, *event), float32.
        reference: real data that training never saw, for the evaluation, (n, *event).
        second_reference: more real data, to measure the noise floor: what real data score against real data.
        reference_text: what these are, in words.
        decoder: leads from what the network sees back to the data's own form.
        card: how the data came about, for the checkpoint's card.
    """

    train: Array
    reference: Array
    second_reference: Array
    reference_text: str
    decoder: Decoder
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Sha256 of the training samples: tells whether a resumed run has the same data before it."""
        return hashlib.sha256(np.ascontiguousarray(self.train).tobytes()).hexdigest()


def prepare(recipe: Recipe, data_dir: Path | None = None) -> DataSet:
    """Make or read the recipe's data set. The recipe's seed decides which samples there are.

    Args:
        recipe: names the data set and its settings.
        data_dir: folder that holds data files, for data sets that need some.

    Raises:
        DataError: a file is missing or damaged, or the data hold a number that is not finite.
    """
    match recipe.data:
        case PointsData() as config:
            data = _points(config, recipe.seed)
        case DigitsData() as config:
            data = _digits(config, recipe.seed)
        case MnistData() as config:
            data = _mnist(config, recipe.seed, data_dir)
    if not np.isfinite(data.train).all():
        raise DataError(f"the {recipe.data.name} data hold numbers that are not finite")
    data.card["sha256"] = data.digest
    return data


_FRESH = 2000


def _points(config: PointsData, seed: int) -> DataSet:
    from sklearn.datasets import make_circles, make_moons

    # The two functions differ only in the inner circle's radius, which make_moons does not have.
    extra = {"factor": 0.5} if config.name == "circles" else {}
    make: Callable[..., Any] = make_circles if config.name == "circles" else make_moons

    def points(samples: int, purpose: Purpose, position: int = 0) -> Array:
        state = draws.seed32(seed, purpose, position)
        return make(n_samples=samples, noise=config.noise, random_state=state, **extra)[0].astype(np.float32)

    return DataSet(
        train=points(config.samples, Purpose.DATA),
        reference=points(_FRESH, Purpose.FRESH),
        second_reference=points(_FRESH, Purpose.FRESH, 1),
        reference_text=f"{_FRESH} fresh points of the same distribution",
        decoder=Decoder.identity((2,)),
        card={
            "name": config.name,
            "source": f"scikit-learn {make.__name__}",
            "samples": config.samples,
            "noise": config.noise,
            "scaling": "none: scikit-learn's own coordinates",
            **extra,
        },
    )


def _digits(config: DigitsData, seed: int) -> DataSet:
    from sklearn.datasets import load_digits

    pixels = np.asarray(load_digits(return_X_y=True)[0], dtype=np.float32)  # 0 ... 16
    scaled: Array = pixels[draws.generator(seed, Purpose.DATA).permutation(len(pixels))] / np.float32(8) - np.float32(1)
    half = torch.full((pixels.shape[1],), 0.5)
    train, held_out = scaled[config.held_out :], scaled[: config.held_out]
    return DataSet(
        train=train,
        reference=held_out,
        second_reference=train[: config.held_out],
        reference_text=f"{config.held_out} held-out digits: all the real data that training did not see",
        decoder=Decoder.affine(half, half, data_shape=(8, 8), clip=(0.0, 1.0)),
        card={
            "name": "digits",
            "source": "scikit-learn load_digits",
            "samples": len(train),
            "held_out": config.held_out,
            "scaling": "pixels 0 ... 16 mapped to [-1, 1]",
        },
    )


def _mnist(config: MnistData, seed: int, data_dir: Path | None) -> DataSet:
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    train, test, source = mnist.load(data_dir)
    chosen = draws.generator(seed, Purpose.DATA).permutation(len(train))[: config.samples]
    fresh = min(_FRESH, len(test) // 2)
    unseen = draws.generator(seed, Purpose.FRESH).permutation(len(test))[: 2 * fresh]
    if config.components > min(len(chosen), train.shape[1]):
        raise DataError(f"{len(chosen)} digits are too few for data.components = {config.components}")
    pixels = train[chosen].astype(np.float64) / 255
    pca = PCA(config.components, svd_solver="covariance_eigh")
    with threadpool_limits(1):  # the same bits on any number of cores, which resuming relies on
        latent = pca.fit_transform(pixels)
        held_out = pca.transform(test[unseen].astype(np.float64) / 255)
    scale = float(latent.std())
    held_out = (held_out / scale).astype(np.float32)
    return DataSet(
        train=(latent / scale).astype(np.float32),
        reference=held_out[:fresh],
        second_reference=held_out[fresh:],
        reference_text=f"{fresh} digits of MNIST's test set, in the same components",
        decoder=Decoder.pca(
            mean=torch.from_numpy(np.asarray(pca.mean_, dtype=np.float32)),
            components=torch.from_numpy(np.asarray(pca.components_, dtype=np.float32)),
            latent_scale=torch.full((config.components,), scale),
            data_shape=(28, 28),
            clip=(0.0, 1.0),
        ),
        card={
            "name": "mnist",
            "source": source,
            "samples": config.samples,
            "components": config.components,
            "variance_retained": float(pca.explained_variance_ratio_.sum()),
            "scaling": "pixels in [0, 1]; principal components divided by one number, their common standard deviation",
            "latent_scale": scale,
        },
    )
