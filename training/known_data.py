"""Built-in data sets: points, scikit-learn's digits, MNIST."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.conditions import NamedCondition
from models.decoder import Decoder
from training import draws, mnist
from training.data_config import DigitsData, MnistData, PointsData
from training.dataset import Array, DataSet
from training.draws import DrawPurpose
from training.spaces import components, pixels

_FRESH = 2000


def make_points(config: PointsData, seed: int) -> DataSet:
    """Make points of moons or circles, and fresh points to compare with."""
    from sklearn.datasets import make_circles, make_moons

    # The two functions differ only in the inner circle's radius, which make_moons does not have.
    extra = {"factor": 0.5} if config.name == "circles" else {}
    make: Callable[..., Any] = make_circles if config.name == "circles" else make_moons

    def points(samples: int, purpose: DrawPurpose, position: int = 0) -> Array:
        state = draws.seed32(seed, purpose, position)
        return make(n_samples=samples, noise=config.noise, random_state=state, **extra)[0].astype(np.float32)

    return DataSet(
        train=points(config.samples, DrawPurpose.DATA),
        reference=points(_FRESH, DrawPurpose.FRESH),
        second_reference=points(_FRESH, DrawPurpose.FRESH, 1),
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


def read_digits(config: DigitsData, seed: int) -> DataSet:
    """Return scikit-learn's digits, split into digits to train on and digits held out."""
    from sklearn.datasets import load_digits

    bunch = load_digits(return_X_y=True)
    order = draws.generator(seed, DrawPurpose.DATA).permutation(len(bunch[0]))
    pictures = np.asarray(bunch[0])[order] / 16
    labels = np.asarray(bunch[1], dtype=np.int64)[order] if config.conditional else None
    data = pixels(pictures[config.held_out :], pictures[: config.held_out], (8, 8))
    return replace(
        data,
        reference_text=f"{config.held_out} held-out digits: all the real data that training did not see",
        card={
            "name": "digits",
            "source": "scikit-learn load_digits",
            "samples": len(data.train),
            "held_out": config.held_out,
            "scaling": "pixels 0 ... 16 mapped to [-1, 1]",
        },
        condition=NamedCondition.label(10) if config.conditional else None,
        conditions=None if labels is None else labels[config.held_out :],
        reference_conditions=None if labels is None else labels[: config.held_out],
    )


def read_mnist(config: MnistData, seed: int, data_dir: Path | None) -> DataSet:
    """Return MNIST as principal components or pixels, with its test digits as the reference.

    Raises:
        DataError: a file is missing or damaged.
    """
    train, test, source = mnist.load(data_dir)
    chosen = draws.generator(seed, DrawPurpose.DATA).permutation(len(train))[: config.samples]
    fresh = min(_FRESH, len(test) // 2)
    unseen = draws.generator(seed, DrawPurpose.FRESH).permutation(len(test))[: 2 * fresh]
    pictures = train[chosen].astype(np.float64) / 255
    unseen_pictures = test[unseen].astype(np.float64) / 255
    if config.components:
        form, data = "components", components(pictures, unseen_pictures, config.components, (28, 28), "digits")
    else:
        form, data = "pixels", pixels(pictures, unseen_pictures, (28, 28))
    labels = mnist.labels(data_dir, len(train), len(test)) if config.conditional else None
    return replace(
        data,
        reference=data.reference[:fresh],
        second_reference=data.reference[fresh:],
        reference_text=f"{fresh} digits of MNIST's test set, in the same {form}",
        card={"name": "mnist", "source": source, "samples": config.samples, **data.card},
        condition=NamedCondition.label(10) if labels else None,
        conditions=labels[0][chosen] if labels else None,
        reference_conditions=labels[1][unseen[:fresh]] if labels else None,
    )
