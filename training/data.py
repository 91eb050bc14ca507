"""The data sets: what the network is trained on, what it is judged against, and the way back to the data's own form."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.condition import LabelCondition, VectorCondition
from models.decoder import Decoder
from training import draws, mnist
from training.config import DigitsData, ImagesData, MnistData, PointsData, Recipe, VectorsData
from training.draws import Purpose
from training.errors import DataError
from training.labels import labels as mnist_labels
from training.own_data import content_hash, read_images, read_vectors
from training.spaces import components, pixels, standardised

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
        condition: what the samples are conditioned on, or None.
        conditions: one for each training sample, labels (samples,) int64 or vectors (samples, width) float32, or None.
        reference_conditions: the same for `reference`.
    """

    train: Array
    reference: Array
    second_reference: Array
    reference_text: str
    decoder: Decoder
    card: dict[str, Any] = field(default_factory=dict)
    condition: LabelCondition | VectorCondition | None = None
    conditions: NDArray[Any] | None = None
    reference_conditions: NDArray[Any] | None = None

    @property
    def digest(self) -> str:
        """Sha256 of samples and conditions: tells whether a resumed run has the same data before it."""
        digest = hashlib.sha256(np.ascontiguousarray(self.train).tobytes())
        if self.conditions is not None:
            digest.update(np.ascontiguousarray(self.conditions).tobytes())
        return digest.hexdigest()


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
        case VectorsData() | ImagesData() as config:
            data = own(config, recipe.seed, as_picture=recipe.network.architecture == "unet")
    if recipe.network.architecture == "unet" and data.train.ndim == 2:
        data = as_pictures(data, recipe.data.name)
    if data.condition is not None and not recipe.condition_dropout:
        data = replace(data, condition=data.condition.model_copy(update={"null": False}))
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

    bunch = load_digits(return_X_y=True)
    pixels = np.asarray(bunch[0], dtype=np.float32)  # 0 ... 16
    order = draws.generator(seed, Purpose.DATA).permutation(len(pixels))
    scaled: Array = pixels[order] / np.float32(8) - np.float32(1)
    labels = np.asarray(bunch[1], dtype=np.int64)[order] if config.conditional else None
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
        condition=LabelCondition(classes=10) if config.conditional else None,
        conditions=None if labels is None else labels[config.held_out :],
        reference_conditions=None if labels is None else labels[: config.held_out],
    )


def _mnist(config: MnistData, seed: int, data_dir: Path | None) -> DataSet:
    train, test, source = mnist.load(data_dir)
    chosen = draws.generator(seed, Purpose.DATA).permutation(len(train))[: config.samples]
    fresh = min(_FRESH, len(test) // 2)
    unseen = draws.generator(seed, Purpose.FRESH).permutation(len(test))[: 2 * fresh]
    pictures = train[chosen].astype(np.float64) / 255
    unseen_pictures = test[unseen].astype(np.float64) / 255
    if config.components:
        made = components(pictures, unseen_pictures, config.components, (28, 28), "digits")
    else:
        made = pixels(pictures, unseen_pictures, (28, 28))
    labels = mnist_labels(data_dir, len(train), len(test)) if config.conditional else None
    return DataSet(
        train=made.train,
        reference=made.held_out[:fresh],
        second_reference=made.held_out[fresh:],
        reference_text=f"{fresh} digits of MNIST's test set, in the same {made.space}",
        decoder=made.decoder,
        card={"name": "mnist", "source": source, "samples": config.samples, **made.card},
        condition=LabelCondition(classes=10) if labels else None,
        conditions=labels[0][chosen] if labels else None,
        reference_conditions=labels[1][unseen[:fresh]] if labels else None,
    )


def as_pictures(data: DataSet, name: str) -> DataSet:
    """Give flat samples back the shape of pictures, which a UNet needs.

    Raises:
        DataError: the samples are no pictures.
    """
    shape = data.decoder.data_shape
    if data.decoder.config.kind != "affine" or len(shape) not in (2, 3):
        raise DataError(f"network.architecture is 'unet'; it needs pictures, and the {name} samples are vectors")
    event = (1, *shape) if len(shape) == 2 else shape
    scale, shift = data.decoder.scale.reshape(event), data.decoder.shift.reshape(event)
    return replace(
        data,
        train=data.train.reshape(-1, *event),
        reference=data.reference.reshape(-1, *event),
        second_reference=data.second_reference.reshape(-1, *event),
        decoder=Decoder.affine(scale, shift, data_shape=shape, clip=data.decoder.config.clip),
    )


def pin(recipe: Recipe) -> Recipe:
    """The recipe with the hash of its own data, so that changed data are another recipe; others as they are.

    Raises:
        DataError: the data cannot be read, or are not those whose hash the recipe gives.
    """
    if not isinstance(recipe.data, VectorsData | ImagesData):
        return recipe
    found = content_hash(recipe.data)
    if recipe.data.sha256 not in ("", found):
        raise DataError(
            f"data {recipe.data.path} are not those of the recipe: sha256 {found}, data.sha256 {recipe.data.sha256}"
        )
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"sha256": found})})


def own(config: VectorsData | ImagesData, seed: int, as_picture: bool = False) -> DataSet:
    """Read data of your own, split off what is held out, and scale.

    Raises:
        DataError: as in `training.own_data`; or there are too few samples, or all are the same.
    """
    if not config.path:
        raise DataError("data.path is not given; name your file or folder with --data, or in the recipe")
    found = read_vectors(config) if isinstance(config, VectorsData) else read_images(config)
    count = len(found.samples)
    held = max(1, round(config.held_out * count))
    if count - held < 2:
        raise DataError(f"data {config.path} has {count} samples; at least 3 are needed, 2 to train on and 1 held out")
    order = draws.generator(seed, Purpose.DATA).permutation(count)
    samples = found.samples[order]
    conditions = None if found.conditions is None else found.conditions[order]
    if isinstance(config, VectorsData):
        made = standardised(samples[held:], samples[:held], config.path)
    else:
        shape = samples.shape[2:] if samples.shape[1] == 1 else samples.shape[1:]
        flat = samples.reshape(count, -1).astype(np.float64)
        if config.components and as_picture:
            raise DataError("data.components needs network.architecture = 'residual_mlp': a unet takes pixels")
        if config.components:
            made = components(flat[held:], flat[:held], config.components, shape, "pictures")
        else:
            made = pixels(flat[held:], flat[:held], shape)
    return DataSet(
        train=made.train,
        reference=made.held_out,
        second_reference=made.train[:held],
        reference_text=f"{held} held-out samples",
        decoder=made.decoder,
        card={
            "name": config.name,
            "source": Path(config.path).name,
            "source_sha256": config.sha256,
            "samples": count - held,
            "held_out": held,
            **made.card,
        },
        condition=found.condition,
        conditions=None if conditions is None else conditions[held:],
        reference_conditions=None if conditions is None else conditions[:held],
    )
