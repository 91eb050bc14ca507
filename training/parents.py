"""Parents: published models from which others are trained, by reflow, as students, or by going on."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.card import Card, CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.conditions import NamedCondition
from models.decoder import Decoder, Inverse
from models.guidance import guided
from training.config import ParentConfig, Recipe, ReflowConfig, StartConfig
from training.dataset import DataSet
from training.errors import UsageError
from training.spaces import original


def pin_parent(recipe: Recipe) -> Recipe:
    """Return the recipe with the hash of its parent's weights, so that a different parent makes a different recipe.

    The same goes for pairs from a file.

    Raises:
        UsageError: the parent cannot be loaded, or its hash differs from that in the recipe; the file of pairs
            cannot be read.
    """
    for table in ("reflow", "student", "start"):
        config: StartConfig | None = getattr(recipe, table)
        if config is None:
            continue
        pinned = {"sha256": load_parent(config, table).card.weights_sha256}
        if isinstance(config, ReflowConfig) and config.file:
            try:
                with Path(config.file).open("rb") as file:
                    pinned["file_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UsageError(f"pairs {config.file} cannot be read: {error.strerror}") from None
        recipe = recipe.model_copy(update={table: config.model_copy(update=pinned)})
    return recipe


def load_parent(config: StartConfig, table: str) -> Checkpoint:
    """Load the parent that a table of a recipe names; if a hash of its weights is given, they must have it.

    Raises:
        UsageError: it cannot be loaded, has another hash, or is not a velocity field.
    """
    place = f"{table}.checkpoint {config.checkpoint}"
    try:
        parent = load(Path(config.checkpoint))
    except CheckpointError as error:
        raise UsageError(f"{table}.checkpoint: {error}") from None
    if config.sha256 not in ("", parent.card.weights_sha256):
        raise UsageError(
            f"{place} is not that of the recipe: its weights have sha256 {parent.card.weights_sha256}, {table}.sha256 "
            f"is {config.sha256}"
        )
    if why := parent.card.field.no_path:
        raise UsageError(f"{place} {why} to train on; name the model that it was trained on")
    return parent


def check_fit(parent: Card, data: DataSet, config: ParentConfig, table: str) -> None:
    """Refuse a parent with samples in another space than the data, or with other conditions or guidance.

    Raises:
        UsageError: the message says what differs.
    """
    place, shape = f"{table}.checkpoint {config.checkpoint}", tuple(data.train.shape[1:])
    if parent.event_shape != shape:
        raise UsageError(f"{place} has samples {parent.event_shape}; those of the data are {shape}")
    _check_condition(parent.condition, data.condition, place)
    reflowed = parent.dataset.get("reflow")  # its data are those of its first ancestor
    digest = reflowed.get("data_sha256") if isinstance(reflowed, dict) else parent.dataset.get("sha256")
    if digest != data.digest:
        raise UsageError(
            f"{place} was trained on other data than this recipe's, or its card does not say on which, so the two may "
            "not share a space; use the parent's recipe: its data and its seed"
        )
    if config.guidance is not None and parent.condition is None:
        raise UsageError(f"{place} takes no condition, so guidance does not apply; leave guidance out")
    if config.guidance not in (None, 1.0) and parent.condition is not None and not parent.condition.nullable:
        raise UsageError(f"{place} was trained without a null condition, so it cannot be guided; leave guidance out")


def _check_condition(parent: NamedCondition | None, data: NamedCondition | None, place: str) -> None:
    takes, gives = ("none" if condition is None else condition.describe() for condition in (parent, data))
    if takes != gives:
        raise UsageError(f"{place} takes the condition {takes}, and the data give {gives}; both must be the same")


def parent_velocity(parent: Checkpoint, guidance: float | None) -> Callable[..., Tensor]:
    """Return the velocity of a parent at one guidance, a function of states, times and the data's conditions."""
    takes = parent.network_conditions
    if guidance is None or takes is None:
        return parent.velocity
    return lambda x, t, condition: guided(parent.velocity, takes, x, t, condition, torch.full_like(t, guidance))


def in_space_of(parent: Checkpoint, data: DataSet, config: StartConfig) -> DataSet:
    """Return the data as a published model sees them, with its decoder and its condition.

    Raises:
        UsageError: the data have another shape, other columns, classes or conditions than the model, or vary where its
            samples never do.
    """
    place, card = f"start.checkpoint {config.checkpoint}", parent.card
    theirs, own = card.decoder, data.decoder.config
    if (theirs.kind, card.event_shape, theirs.data_shape) != (own.kind, own.event_shape, own.data_shape):
        raise UsageError(
            f"{place} has samples {theirs.data_shape} by {theirs.kind}; those of the data are {own.data_shape} by "
            f"{own.kind}"
        )
    names = [[column.name for column in decoder.columns or ()] for decoder in (theirs, own)]
    if names[0] != names[1]:
        raise UsageError(f"{place} has the columns {', '.join(names[0])}; those of the data are {', '.join(names[1])}")
    for old, new in zip(theirs.columns or (), own.columns or (), strict=True):
        if old.transform in ("log", "log1p") and (new.low < 0 or (old.transform == "log" and new.low == 0)):
            raise UsageError(f"{place} learned the logarithm of {old.name}, which is {new.low:g} in the data")
    decoder = _decoder(parent.decoder, data.decoder)
    decode, encode = copy.deepcopy(data.decoder).double().decode, Inverse(copy.deepcopy(decoder).double()).encode

    def moved(states: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = decode(torch.from_numpy(states).double())
        fixed = decoder.constants.double() if decoder.config.constants else torch.zeros(0)
        if decoder.config.constants and not (rows.flatten(1)[:, decoder.constant_places] == fixed).all():
            raise UsageError(f"{place} never varies in columns or pixels in which the data do; train without --from")
        return encode(rows).float().numpy()

    conditions, reference_conditions = _conditions(card.condition, data, place)
    return replace(
        data,
        train=moved(data.train),
        reference=moved(data.reference),
        second_reference=moved(data.second_reference),
        decoder=decoder,
        condition=card.condition,
        conditions=conditions,
        reference_conditions=reference_conditions,
        card={**data.card, "start": {"parent": card.name, "parent_weights_sha256": card.weights_sha256}},
        notes=(*data.notes, f"continuing {card.name} {config.checkpoint}, in its scale"),
    )


def _decoder(theirs: Decoder, own: Decoder) -> Decoder:
    """Return the model's decoder, whose rounded columns may take the values of the data too."""
    if theirs.config.columns is None or own.config.columns is None:
        return theirs
    columns = []
    for old, new in zip(theirs.config.columns, own.config.columns, strict=True):
        kinds = {old.kind, new.kind}
        kind = old.kind if len(kinds) == 1 else "number" if "number" in kinds else "whole"
        places = [column.decimals for column in (old, new) if column.kind == "number"]
        decimals = None if None in places else max((n for n in places if n is not None), default=None)
        limits = {"low": min(old.low, new.low), "high": max(old.high, new.high)}
        columns.append(old.model_copy(update={"kind": kind, "decimals": decimals, **limits}))
    decoder = Decoder(theirs.config.model_copy(update={"columns": tuple(columns)}))
    decoder.load_state_dict(theirs.state_dict())
    return decoder


def _conditions(
    theirs: NamedCondition | None, data: DataSet, place: str
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return the conditions of the data as the model takes them."""
    own = data.condition
    _check_condition(theirs, own, place)
    values = (data.conditions, data.reference_conditions)
    if theirs is None or own is None:
        return values
    if theirs.nullable != own.nullable:
        raise UsageError(
            f"{place} was trained {'with' if theirs.nullable else 'without'} a null condition; set condition_dropout "
            f"{'above 0' if theirs.nullable else '= 0'}"
        )
    if theirs.classes is not None:
        return values
    moved = [
        None if rows is None else theirs.standardised(torch.from_numpy(original(own, rows)), torch.float32).numpy()
        for rows in values
    ]
    return moved[0], moved[1]
