"""Statistics of a robot's data set, as lerobot (`stats.json`) and openpi (`norm_stats.json`) write them.

Both normalise what goes into a network and undo it for its actions, entry by entry:

    mean-std    (value - mean) / (std + e)                    and back
    min-max     2 (value - min) / (max - min) - 1             lerobot; a range of 0 counts as e
    quantiles   2 (value - q01) / (q99 - q01 + e) - 1         openpi

with e = 1e-8 for lerobot, which leaves it out on the way back from `mean-std`, and 1e-6 for openpi.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from models.importing.files import ForeignError

Normalisation = Literal["mean-std", "min-max", "quantiles"]
NORMALISATIONS = get_args(Normalisation)

_ACTIONS = ("action", "actions")
_FIELDS = {"mean-std": ("mean", "std"), "min-max": ("min", "max"), "quantiles": ("q01", "q99")}


Array = NDArray[np.float64]
Affine = tuple[Array, Array, Array]
"""Mean, scale and spread of one entry: a network takes (value - mean) * scale, and data are value * spread + mean."""


def read_statistics(document: Mapping[str, Any], normalisation: Normalisation) -> dict[str, Affine]:
    """Return the normalisation of each entry that has the numbers for it; `observation.state` is called `state`.

    Args:
        document: the file.
        normalisation: how the network was trained.

    Raises:
        ForeignError: no entry has these numbers, or some are not finite.
    """
    openpi = isinstance(document.get("norm_stats"), Mapping)
    entries = document["norm_stats"] if openpi else document
    first, second = _FIELDS[normalisation]
    normalisations: dict[str, Affine] = {}
    for name, entry in entries.items():
        if not (isinstance(entry, Mapping) and entry.get(first) is not None and entry.get(second) is not None):
            continue
        try:
            low, high = (np.asarray(entry[field], dtype=np.float64) for field in (first, second))
            with np.errstate(all="ignore"):  # what overflows is refused
                affine = _affine(low, high, normalisation, 1e-6 if openpi else 1e-8, openpi)
            if not all(np.isfinite(values).all() for values in affine):
                raise ValueError(f"its {first} and {second} make a scale that is not finite")
            normalisations[str(name).rsplit(".", 1)[-1]] = affine
        except (TypeError, ValueError, OverflowError) as error:
            raise ForeignError(f"--stats: {name}: {error}") from None
    if not normalisations:
        raise ForeignError(f"--stats: no entry has {first} and {second}; choose another --normalisation")
    return normalisations


def _affine(low: Any, high: Any, normalisation: Normalisation, epsilon: float, openpi: bool) -> Affine:
    if low.shape != high.shape or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("its numbers have two shapes, or are not finite")
    if normalisation == "mean-std":
        return low, 1 / (high + epsilon), high + epsilon * openpi
    width = high - low
    width = width + epsilon if openpi else np.where(width == 0, epsilon, width)
    return low + width / 2, 2 / width, width / 2


def of_conditions(
    statistics: Mapping[str, Affine], names: list[str], stated: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the declared fields of conditions, with mean and scale for those that have statistics and declare none."""
    fields: dict[str, Mapping[str, Any]] = dict(stated)
    for name in filter(statistics.__contains__, names):
        if not {"mean", "scale"} & fields.get(name, {}).keys():
            mean, scale, _ = statistics[name]
            fields[name] = {**fields.get(name, {}), "mean": mean.tolist(), "scale": scale.tolist()}
    return fields


def of_actions(statistics: Mapping[str, Affine]) -> dict[str, Array]:
    """Return mean and scale of a decoder to actions, along their last axis; nothing without statistics of actions."""
    for name in filter(statistics.__contains__, _ACTIONS):
        mean, _, spread = statistics[name]
        return {"mean": mean[None], "scale": spread[None]}
    return {}
