"""The velocity field: its protocol, its error, and the forms it can be computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Condition = Tensor | Mapping[str, Tensor]
"""The condition of a network call: a tensor with one row for each state, or several such tensors by name."""


class VelocityError(ValueError):
    """A velocity field was given, or returned, something invalid."""


class VelocityField(Protocol):
    """A field `v(x, t, condition)` of the flow dx/dt = v, with noise at t = 0 and data at t = 1.

    A field of average velocity also takes times (rows, 2), each the start t and the end s of a step, and returns the
    velocity that leads from the state at t to the one at s: x_s = x_t + (s - t) u(x_t, t, s). At s = t that is v.
    """

    def __call__(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,); returns (rows, *event) in the dtype of x.

        The condition is a `Condition` of the kind that the field takes (see `models.named_conditions`), or None.
        """
        ...


@runtime_checkable
class HasForms(Protocol):
    """A field that can be computed in several ways."""

    def forms(self) -> Iterator[VelocityField]:
        """Yield the ways of computing the field as it is now, the cheapest first; that one has the field's own bits.

        Later ones round differently. They are for kernels with which a row's bits depend on the other rows in the call.
        """
        ...


def forms(velocity: VelocityField) -> Iterator[VelocityField]:
    """Return the ways of computing a field (see `HasForms`); the field itself if it offers none."""
    return velocity.forms() if isinstance(velocity, HasForms) else iter((velocity,))


def rows_of(velocity: object) -> tuple[int, int | None]:
    """Return the fewest and the most rows that a field takes in one call; None for no bound."""
    return getattr(velocity, "rows", (1, None))


def each(condition: Condition, change: Callable[[Tensor], Tensor]) -> Condition:
    """Apply a change to each tensor of a condition."""
    if isinstance(condition, Tensor):
        return change(condition)
    return {name: change(tensor) for name, tensor in condition.items()}


def check_float32(x: Tensor, t: Tensor, event_shape: Sequence[int | str]) -> None:
    """Check states x (rows, *event_shape) and times t (rows,) of a form that is computed in float32.

    Raises:
        VelocityError: they have another shape or dtype.
    """
    rows = len(x)
    if x.dtype != torch.float32 or x.shape[1:] != tuple(event_shape) or t.dtype != x.dtype or t.shape != (rows,):
        raise VelocityError(
            f"states are {x.dtype} of shape {tuple(x.shape)} with times {t.dtype} of shape {tuple(t.shape)}; this "
            f"field takes torch.float32 of shape (rows, {', '.join(map(str, event_shape))}) and (rows,)"
        )


def refuse_condition(condition: Condition | None) -> None:
    """Raise a VelocityError if an unconditional field is given a condition."""
    if condition is not None:
        raise VelocityError("condition was given, but this model is unconditional: leave condition out")
