"""User data as a data set: pinned by their hash, split and scaled."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.decoder import ColumnCard
from training.config import Recipe
from training.data_config import ImagesData, OwnData, VectorsData
from training.dataset import DataSet, Rows, split
from training.errors import DataError
from training.spaces import (
    MAX_COLUMNS,
    columns_of,
    components,
    conditioned,
    pixels,
    skewness,
    standardised,
)
from training.user_data.pictures import picture_files, read_images
from training.user_data.read import Read, listed
from training.user_data.rows import outliers, read_vectors


def pin(recipe: Recipe) -> Recipe:
    """Return the recipe with the hash of its user data, so that changed data make another recipe.

    A recipe without user data is returned as it is.

    Raises:
        DataError: the data cannot be read, or their hash differs from that in the recipe.
    """
    if not isinstance(recipe.data, OwnData):
        return recipe
    sha256 = content_hash(recipe.data)
    if recipe.data.sha256 not in ("", sha256):
        raise DataError(
            f"data {recipe.data.path} are not those of the recipe: their sha256 is {sha256}, data.sha256 is "
            f"{recipe.data.sha256}; restore them, or leave data.sha256 out"
        )
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"sha256": sha256})})


def content_hash(config: OwnData) -> str:
    """Return the SHA-256 of a file, or of a folder's pictures with their names, and of the labels file if there is one.

    Raises:
        DataError: no path is given, or it cannot be read.
    """
    if not config.path:
        raise DataError("data.path is not given; name your file or folder with --data, or in the recipe")
    path = Path(config.path)
    if isinstance(config, VectorsData) and path.is_dir():
        raise DataError(f"data {path} is a folder, so these are pictures: use fit images, or name a file of rows")
    if isinstance(config, ImagesData) and path.suffix.lower() in (".csv", ".tsv"):
        raise DataError(f"data {path} is a table, so these are rows: use fit vectors, or name a folder of pictures")
    digest = hashlib.sha256()
    files = picture_files(path)[0] if path.is_dir() and isinstance(config, ImagesData) else [path]
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
    """Read user data, split off the held-out samples, and scale; the recipe names their place (see `pin`).

    Raises:
        DataError: the data cannot be read (see `read_vectors`, `read_images`), are too few, or are all the same.
    """
    read = read_vectors(config) if isinstance(config, VectorsData) else read_images(config)
    train, held_out = split(f"data {config.path}", len(read.samples), config.held_out, seed, read.conditions)
    condition, conditions = conditioned(read.condition, read.conditions, train)
    if isinstance(config, VectorsData):
        data, lines = _of_rows(read, config, train, held_out)
    else:
        data, lines = _of_pictures(read, config, train, held_out, as_picture), []
    return replace(
        data,
        reference_text=f"{len(held_out)} held-out samples",
        card={
            "name": config.name,
            "source": Path(config.path).name,
            "source_sha256": config.sha256,
            "samples": len(train),
            "held_out": len(held_out),
            **data.card,
        },
        condition=condition,
        conditions=None if conditions is None else conditions[train],
        reference_conditions=None if conditions is None else conditions[held_out],
        condition_names=read.condition_names,
        notes=(*read.notes, *_only_trained(read, held_out), *lines),
    )


def _of_rows(read: Read, config: VectorsData, train: Rows, held_out: Rows) -> tuple[DataSet, list[str]]:
    """Scale rows of numbers; return lines on columns that the user should know of, too."""
    rows = read.samples.astype(np.float64, copy=False)
    columns = columns_of(read.names, read.units, rows[train], rows[held_out], config)
    data = standardised(rows[train], rows[held_out], columns, config.path, config.scale == "robust")
    return data, [*_far(read, config, columns), *_remarks(columns, rows[train], rows[held_out])]


def _of_pictures(read: Read, config: ImagesData, train: Rows, held_out: Rows, as_picture: bool) -> DataSet:
    """Scale pictures, or represent them by their principal components."""
    samples = read.samples
    shape = samples.shape[2:] if samples.shape[1] == 1 else samples.shape[1:]
    flat = samples.reshape(len(samples), -1).astype(np.float64)
    if not config.components:
        return pixels(flat[train], flat[held_out], shape)
    if as_picture:
        raise DataError(
            "data.components needs network.architecture = 'residual_mlp': networks for pictures take pixels"
        )
    return components(flat[train], flat[held_out], config.components, shape, "pictures")


def _only_trained(read: Read, held_out: Rows) -> list[str]:
    """Return a line that names the classes without a held-out sample, if there are any."""
    if read.condition is None or read.condition.classes is None or read.conditions is None:
        return []
    counts, tested = (
        np.bincount(rows, minlength=read.condition.classes) for rows in (read.conditions, read.conditions[held_out])
    )
    names = read.condition.names or range(read.condition.classes)
    small = [f"{name} ({count:,})" for name, count, held in zip(names, counts, tested, strict=True) if not held]
    return [f"no sample is held out of {listed(small)}, so nothing is measured on them"] if small else []


def _far(read: Read, config: VectorsData, columns: Sequence[ColumnCard]) -> list[str]:
    """Return lines on values that are far from the others of their column, of samples and of conditions."""
    advice = "correct or remove such rows if they are wrong"
    more = ', or use --scale robust (data.scale = "robust"), which scales by median and quartiles'
    robust = config.scale == "robust"
    plain = [place for place in range(len(read.names)) if not columns or not columns[place].transform]
    lines = outliers(
        read.samples.astype(np.float64, copy=False)[:, plain],
        [read.names[place] for place in plain],
        read.lines,
        "it is scaled by quartiles" if robust else advice + more,
    )
    if read.condition is not None and read.condition.classes is None and read.conditions is not None:
        names = [f"{name} of the condition" for name in read.condition_names]
        lines += outliers(read.conditions, names, read.lines, advice)
    return lines


def _remarks(columns: Sequence[ColumnCard], train: NDArray[np.float64], held_out: NDArray[np.float64]) -> list[str]:
    """Return lines that name the columns that are rounded, that vary in held-out rows only, or that are transformed."""
    if not columns:
        return [f"more than {MAX_COLUMNS:,} columns are neither named in the card nor rounded"]
    logs = [place for place, column in enumerate(columns) if column.transform in ("log", "log1p")]
    undo = '--no-transform (data.transforms = "none") transforms no columns but those named'
    remarks = {
        "every value is whole, so samples are rounded and stay in range: {}; --no-round (data.round = false) leaves "
        "them as they are": [
            f"{column.name} ({'yes/no' if column.kind == 'yes-no' else f'{column.low:.15g} to {column.high:.15g}'})"
            for column in columns
            if column.kind != "number" and column.low < column.high
        ],
        "varies in the held-out rows only, so all samples have the value of the training rows: {}": [
            f"{column.name} ({column.low:.15g})"
            for column, values in zip(columns, held_out.T, strict=True)
            if column.low == column.high and (values != column.low).any()
        ],
        f"learned by logarithm, so that no sample is negative: {{}}; {undo}": [
            f"{columns[place].name} (skewness {skewness(train[:, place]):.1f})" for place in logs
        ],
        f"learned by quantiles, as tails are long or there are several peaks: {{}}; {undo}": [
            column.name for column in columns if column.transform == "quantile"
        ],
    }
    return [line.format(listed(names)) for line, names in remarks.items() if names]
