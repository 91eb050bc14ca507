"""Parents: published models from which others are trained, by reflow, as students, or by going on."""

import copy
import hashlib
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
from models.decoder import ColumnCard, Decoder, Inverse
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
        given: StartConfig | None = getattr(recipe, table)
        if given is not None:
            found = load_parent(given, table).card.weights_sha256
            pinned = {"sha256": found}
            if isinstance(given, ReflowConfig) and given.file:
                pinned["file_sha256"] = _sha256(Path(given.file))
            recipe = recipe.model_copy(update={table: given.model_copy(update=pinned)})
    return recipe


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"pairs {file} cannot be read: {error.strerror}") from None


def load_parent(given: StartConfig, table: str) -> Checkpoint:
    """Load the parent that a table of a recipe names; if a hash of its weights is given, they must have it.

    Raises:
        UsageError: it cannot be loaded, has another hash, or is not a velocity field.
    """
    try:
        parent = load(Path(given.checkpoint))
    except CheckpointError as error:
        raise UsageError(f"{table}.checkpoint: {error}") from None
    if given.sha256 not in ("", parent.card.weights_sha256):
        raise UsageError(
            f"{table}.checkpoint {given.checkpoint} is not that of the recipe: its weights have sha256 "
            f"{parent.card.weights_sha256}, {table}.sha256 is {given.sha256}"
        )
    if parent.card.field.takes_ends:
        raise UsageError(
            f"{table}.checkpoint {given.checkpoint} is a field of average velocity, which has no paths to train on; "
            "name the model that it was trained on"
        )
    return parent


def check_fit(parent: Card, data: DataSet, given: ParentConfig, table: str) -> None:
    """Refuse a parent with samples in another space than the data, or with other conditions or guidance.

    Raises:
        UsageError: the message says what differs.
    """
    place, shape = f"{table}.checkpoint {given.checkpoint}", tuple(data.train.shape[1:])
    if parent.event_shape != shape:
        raise UsageError(f"{place} has samples {parent.event_shape}; those of the data are {shape}")
    takes, gives = ("none" if each is None else each.describe() for each in (parent.condition, data.condition))
    if takes != gives:
        raise UsageError(
            f"{place} takes the condition {takes}, and the data give {gives}; name a parent that takes what the data "
            "give"
        )
    if _trained_on(parent) != data.digest:
        raise UsageError(
            f"{place} was trained on other data than this recipe's, or its card does not say on which, so the two may "
            "not share a space; use the parent's recipe: its data and its seed"
        )
    if given.guidance is not None and parent.condition is None:
        raise UsageError(f"{place} takes no condition, so guidance does not apply; leave guidance out")
    if given.guidance not in (None, 1.0) and parent.condition is not None and not parent.condition.nullable:
        raise UsageError(f"{place} was trained without a null condition, so it cannot be guided; leave guidance out")


def _trained_on(parent: Card) -> Any:
    """Return the hash of the data that a card names; for a reflowed model, the data of its first ancestor."""
    reflowed = parent.dataset.get("reflow")
    return reflowed.get("data_sha256") if isinstance(reflowed, dict) else parent.dataset.get("sha256")


class ParentVelocity:
    """The velocity of a parent at one guidance, as a function of states, times and the data's conditions."""

    def __init__(self, parent: Checkpoint, guidance: float | None) -> None:
        self._velocity, self._takes, self._guidance = parent.velocity, parent.card.network_conditions, guidance

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,)."""
        if self._takes is None or self._guidance is None or condition is None:
            return self._velocity(x, t, condition)
        return guided(self._velocity, self._takes, x, t, condition, torch.full_like(t, self._guidance))


def in_space_of(parent: Checkpoint, data: DataSet, given: StartConfig) -> DataSet:
    """Return the data as a published model sees them, with its decoder and its condition.

    Raises:
        UsageError: the data have another shape, other columns, classes or conditions than the model, or vary where its
            samples never do.
    """
    place, card = f"start.checkpoint {given.checkpoint}", parent.card
    theirs, own = card.decoder, data.decoder.config
    if (theirs.kind, card.event_shape, theirs.data_shape) != (own.kind, own.event_shape, own.data_shape):
        raise UsageError(
            f"{place} has samples {theirs.data_shape} by {theirs.kind}; those of the data are {own.data_shape} by "
            f"{own.kind}"
        )
    names = [[column.name for column in config.columns or ()] for config in (theirs, own)]
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

    condition, conditions = _conditions(card.condition, data, place)
    return replace(
        data,
        train=moved(data.train),
        reference=moved(data.reference),
        second_reference=moved(data.second_reference),
        decoder=decoder,
        condition=condition,
        conditions=conditions[0],
        reference_conditions=conditions[1],
        card={**data.card, "start": {"parent": card.name, "parent_weights_sha256": card.weights_sha256}},
        notes=(*data.notes, f"continuing {card.name} {given.checkpoint}, in its scale"),
    )


def _decoder(theirs: Decoder, own: Decoder) -> Decoder:
    """Return the model's decoder, whose rounded columns may take the values of the data too."""
    if theirs.config.columns is None or own.config.columns is None:
        return theirs
    columns = [_wider(*pair) for pair in zip(theirs.config.columns, own.config.columns, strict=True)]
    decoder = Decoder(theirs.config.model_copy(update={"columns": tuple(columns)}))
    decoder.load_state_dict(theirs.state_dict())
    return decoder


def _wider(old: ColumnCard, new: ColumnCard) -> ColumnCard:
    """Return a column of the model that has the values of the data, too."""
    kinds = {old.kind, new.kind}
    kind = old.kind if len(kinds) == 1 else "number" if "number" in kinds else "whole"
    places = [column.decimals for column in (old, new) if column.kind == "number"]
    decimals = None if None in places else max((n for n in places if n is not None), default=None)
    limits = {"low": min(old.low, new.low), "high": max(old.high, new.high)}
    return old.model_copy(update={"kind": kind, "decimals": decimals, **limits})


def _conditions(
    theirs: NamedCondition | None, data: DataSet, place: str
) -> tuple[NamedCondition | None, tuple[NDArray[Any] | None, NDArray[Any] | None]]:
    """Return the model's condition, and those of the data as it takes them."""
    own, values = data.condition, (data.conditions, data.reference_conditions)
    takes, gives = ("none" if each is None else each.describe() for each in (theirs, own))
    if takes != gives:
        raise UsageError(f"{place} takes the condition {takes}, and the data give {gives}; both must be the same")
    if theirs is None or own is None:
        return None, values
    if theirs.nullable != own.nullable:
        raise UsageError(
            f"{place} was trained {'with' if theirs.nullable else 'without'} a null condition; set condition_dropout "
            f"{'above 0' if theirs.nullable else '= 0'}"
        )
    if theirs.classes is not None:
        return theirs, values
    moved = [
        None if each is None else theirs.standardised(torch.from_numpy(original(own, each)), torch.float32).numpy()
        for each in values
    ]
    return theirs, (moved[0], moved[1])
