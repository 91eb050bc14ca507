"""A training that continues a published model: its weights to begin with, in its space and for its conditions.

The network has learned what its own decoder and the scale of its conditions mean, so the new data are expressed in
these, whatever their own mean and spread are.
"""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.checkpoint.loading import Checkpoint
from models.decoder import Column, Decoder, Inverse
from models.named_conditions import NamedCondition
from training.config import StartConfig
from training.dataset import DataSet
from training.errors import UsageError
from training.spaces import original


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
    columns = [
        Column(
            name=old.name,
            kind=old.kind if new.kind != "number" and old.kind == new.kind else _wider(old, new),
            low=min(old.low, new.low),
            high=max(old.high, new.high),
        )
        for old, new in zip(theirs.config.columns, own.config.columns, strict=True)
    ]
    decoder = Decoder(theirs.config.model_copy(update={"columns": tuple(columns)}))
    decoder.load_state_dict(theirs.state_dict())
    return decoder


def _wider(old: Column, new: Column) -> Any:
    """Return the kind of a column that has the values of both."""
    return "number" if "number" in (old.kind, new.kind) else "whole"


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
