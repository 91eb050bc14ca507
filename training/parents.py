"""Parents: published models from which others are trained, by reflow, as students, or by going on."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.checkpoint.card import Card, CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.guidance import Guided
from training.config import ParentConfig, Recipe, ReflowConfig, StartConfig
from training.dataset import DataSet
from training.errors import UsageError


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
        condition = parent.card.conditioning
        self._velocity = parent.velocity
        self._guided = None if guidance is None or condition is None else Guided(parent.velocity, condition)
        self._guidance = guidance

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,)."""
        if self._guided is None or self._guidance is None:
            return self._velocity(x, t, condition)
        return self._guided(x, t, condition, torch.full_like(t, self._guidance))
