"""The prelude: a program that turns the conditions of a request into those that the network takes, once per request.

    "prelude": {"conditions": {"image": {"dtype": "uint8", "shape": [3, 96, 96], "scale": 0.00392}}, "program": {...}}

It computes everything that does not depend on states and times (a text encoder, a vision encoder, the keys and values
of a prefix) before the first network call, with one row for each distinct condition. Its results are named conditions
of the network; the network's other conditions still come from the request. Nulls and negative conditions go through it
as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.condition_values import Distinct
from models.conditions import NAME, ConditionError, DeviceLike, NamedCondition, NamedConditions
from models.frozen import Frozen
from models.mixing import find_mixing_of
from models.program.steps import Function, FunctionConfig

_Name = Annotated[str, Field(pattern=NAME)]


class PreludeCard(Frozen):
    """The prelude in a card.

    Attributes:
        conditions: the conditions that requests give, by the names of the program's inputs.
        program: the function, with results named like the network's conditions.
    """

    conditions: dict[_Name, NamedCondition] = Field(min_length=1, max_length=64)
    program: FunctionConfig

    @model_validator(mode="after")
    def _inputs_are_conditions(self) -> Self:
        if set(self.program.inputs) != set(self.conditions):
            raise ValueError(
                f"the prelude's program takes {', '.join(sorted(self.program.inputs))}, but its conditions are "
                f"{', '.join(sorted(self.conditions))}; they must be the same"
            )
        return self

    def request_conditions(self, taken: Mapping[str, NamedCondition]) -> dict[str, NamedCondition]:
        """Return the conditions that requests give, by name.

        Args:
            taken: the conditions that the network takes.

        Raises:
            ValueError: the prelude and the network do not fit together.
        """
        outputs = set(self.program.outputs)
        if unknown := sorted(outputs - set(taken)):
            raise ValueError(f"the prelude makes {unknown[0]!r}, which is not a condition of the network")
        for name in sorted(outputs):
            entry = taken[name]
            if name in self.conditions:
                raise ValueError(f"the prelude takes and makes {name!r}; give one of them another name")
            if entry.null is not None or entry.default is not None or entry.is_standardised:
                raise ValueError(
                    f"{name} is made by the prelude, so requests cannot leave it out: declare null, default, mean and "
                    "scale for the prelude's own conditions"
                )
        requested = dict(self.conditions)
        for name, entry in taken.items():
            if name in requested and requested[name] != entry:
                raise ValueError(f"the prelude and the network take {name!r} in different ways; give it two names")
            if name not in outputs:
                requested[name] = entry
        NamedConditions(requested).check_entries()
        axes = NamedConditions(requested).axes
        for name in sorted(outputs):
            if lacking := [axis for axis in taken[name].free if axis not in axes]:
                raise ValueError(f"axis {lacking[0]} of {name} is in no condition that requests give")
        return requested


class Prelude(nn.Module):
    """A prelude with its tensors.

    Attributes:
        card: the description.
        inputs, outputs: the conditions that it takes and makes, in their order.
    """

    def __init__(self, card: PreludeCard, program: Function | None = None) -> None:
        super().__init__()
        self.card = card
        self.program = Function(card.program) if program is None else program
        self.inputs, self.outputs = tuple(card.program.inputs), tuple(card.program.outputs)

    def call(self, takes: NamedConditions, *conditions: Tensor) -> tuple[Tensor, ...]:
        """Return the conditions that it makes, (rows, *shape) each.

        Args:
            takes: the conditions that the network takes, without free axes.
            conditions: those that it takes, (rows, *shape), in the order of `inputs`.

        Raises:
            VelocityError: a step of the program fails.
            ConditionError: a result is not finite, or not of the shape and dtype that the network takes.
        """
        results = self.program(dict(zip(self.inputs, conditions, strict=True)))
        rows = len(conditions[0])
        for name, tensor in results.items():
            entry = takes.entries[name]
            shape = (rows, *entry.sizes)
            if tuple(tensor.shape) != shape or tensor.dtype != entry.torch_dtype:
                raise ConditionError(
                    f"the prelude made {name} as {tensor.dtype} of shape {list(tensor.shape[1:])}; the network takes "
                    f"{entry.torch_dtype} of shape {list(entry.sizes)}"
                )
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ConditionError(f"the prelude made {name} with numbers that are not finite")
        return tuple(results[name] for name in self.outputs)

    def examples(
        self, requested: NamedConditions, rows: int, dtype: torch.dtype, device: DeviceLike = "cpu"
    ) -> tuple[Tensor, ...]:
        """Make example arguments for the prelude, with distinct rows where possible.

        Args:
            requested: the conditions that requests give; free axes get a typical size.
            rows: number of rows.
            dtype: dtype of the states.
            device: the device to put them on.
        """
        sized = requested.sized({})
        examples = dict(zip(sized.entries, sized.unpack(sized.examples(rows, dtype, device)), strict=True))
        return tuple(examples[name] for name in self.inputs)

    def find_mixing(
        self, requested: NamedConditions, takes: NamedConditions, dtype: torch.dtype, device: DeviceLike = "cpu"
    ) -> str | None:
        """Return how its rows depend on each other; None if they do not."""
        fixed = takes.sized({})
        return find_mixing_of(
            "prelude",
            lambda *conditions: self.call(fixed, *conditions),
            lambda rows: self.examples(requested, rows, dtype, device),
        )


def combinations(
    conditions: Mapping[str, Distinct], names: tuple[str, ...]
) -> tuple[list[Tensor], NDArray[np.int64] | None]:
    """Return the distinct combinations of rows of several conditions.

    Args:
        conditions: conditions of some samples, by name.
        names: names of the conditions to combine.

    Returns:
        One tensor (combinations, *shape) for each name, and the combination of each sample (None if there is only one).
    """
    merged = {name: conditions[name].merged() for name in names}
    indices = [distinct.index for distinct in merged.values() if distinct.index is not None]
    if not indices:
        return [distinct.rows[:1] for distinct in merged.values()], None
    combined, place = np.unique(np.stack(indices, axis=1), axis=0, return_inverse=True)
    columns = iter(np.ascontiguousarray(combined.T))
    rows: list[Tensor] = []
    for distinct in merged.values():
        if distinct.index is None:
            rows.append(distinct.rows[:1].expand(len(combined), *distinct.rows.shape[1:]))
        else:
            rows.append(distinct.rows[torch.from_numpy(next(columns))])
    return rows, place.reshape(-1).astype(np.int64)
