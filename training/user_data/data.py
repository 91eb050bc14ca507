"""User data as a data set: pinned by their hash, split and scaled."""

import hashlib
import os
from pathlib import Path

import numpy as np

from training.config import Recipe
from training.data_config import ImagesData, OwnData, VectorsData
from training.dataset import DataSet
from training.errors import DataError
from training.spaces import components, conditioned, pixels, standardised
from training.split import Rows, split
from training.user_data.pictures import picture_files, read_images
from training.user_data.read import LISTED, Read
from training.user_data.rows import read_vectors


def pin(recipe: Recipe) -> Recipe:
    """Return the recipe with the hash of its user data, so that changed data make another recipe.

    A recipe without user data is returned as it is.

    Raises:
        DataError: the data cannot be read, or their hash differs from that in the recipe.
    """
    if not isinstance(recipe.data, VectorsData | ImagesData):
        return recipe
    found = content_hash(recipe.data)
    if recipe.data.sha256 not in ("", found):
        raise DataError(
            f"data {recipe.data.path} are not those of the recipe: their sha256 is {found}, data.sha256 is "
            f"{recipe.data.sha256}; restore them, or leave data.sha256 out"
        )
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"sha256": found})})


def content_hash(config: OwnData) -> str:
    """Return the SHA-256 of a file, or of a folder's pictures with their names, and of the labels file if there is one.

    Raises:
        DataError: no path is given, or it cannot be read.
    """
    if not config.path:
        raise DataError("data.path is not given; name your file or folder with --data, or in the recipe")
    path = Path(config.path)
    digest = hashlib.sha256()
    files = picture_files(path).files if path.is_dir() and isinstance(config, ImagesData) else [path]
    if isinstance(config, ImagesData) and config.labels:
        files = [*files, Path(config.labels)]
    try:
        for file in files:
            digest.update(os.fsencode(file.relative_to(path)) if file.is_relative_to(path) else b"")
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError as error:
        raise DataError(f"data {error.filename} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def read_own(config: VectorsData | ImagesData, seed: int, as_picture: bool = False) -> DataSet:
    """Read user data, split off the held-out samples, and scale.

    Raises:
        DataError: the data cannot be read (see `read_vectors`, `read_images`), are too few, or are all the same.
    """
    if not config.path:
        raise DataError("data.path is not given; name your file or folder with --data, or in the recipe")
    found = read_vectors(config) if isinstance(config, VectorsData) else read_images(config)
    samples = found.samples
    train, held_out = split(f"data {config.path}", len(samples), config.held_out, seed, found.conditions)
    condition, conditions = conditioned(found.condition, found.conditions, train)
    if isinstance(config, VectorsData):
        made = standardised(samples[train], samples[held_out], config.path)
    else:
        shape = samples.shape[2:] if samples.shape[1] == 1 else samples.shape[1:]
        flat = samples.reshape(len(samples), -1).astype(np.float64)
        if config.components and as_picture:
            raise DataError(
                "data.components needs network.architecture = 'residual_mlp': networks for pictures take pixels"
            )
        if config.components:
            made = components(flat[train], flat[held_out], config.components, shape, "pictures")
        else:
            made = pixels(flat[train], flat[held_out], shape)
    return DataSet(
        train=made.train,
        reference=made.held_out,
        second_reference=made.train[: len(held_out)],
        reference_text=f"{len(held_out)} held-out samples",
        decoder=made.decoder,
        card={
            "name": config.name,
            "source": Path(config.path).name,
            "source_sha256": config.sha256,
            "samples": len(train),
            "held_out": len(held_out),
            **made.card,
        },
        condition=condition,
        conditions=None if conditions is None else conditions[train],
        reference_conditions=None if conditions is None else conditions[held_out],
        notes=(*found.notes, *_only_trained(found, held_out)),
    )


def _only_trained(found: Read, held_out: Rows) -> list[str]:
    """Return a line that names the classes without a held-out sample, if there are any."""
    if found.condition is None or found.condition.classes is None or found.conditions is None:
        return []
    counts = np.bincount(found.conditions, minlength=found.condition.classes)
    tested = np.bincount(found.conditions[held_out], minlength=found.condition.classes)
    names = found.condition.names or range(found.condition.classes)
    small = [f"{name} ({count:,})" for name, count, held in zip(names, counts, tested, strict=True) if not held]
    if not small:
        return []
    more = ", ..." if len(small) > LISTED else ""
    return [f"no sample is held out of {', '.join(small[:LISTED])}{more}, so nothing is measured on them"]
