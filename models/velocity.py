"""The velocity field: its protocol, its error, and the forms it can be computed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from torch import Tensor


class VelocityError(ValueError):
    """A velocity field was given, or returned, something that it must not."""


class VelocityField(Protocol):
    """A field `v(x, t, condition)` of the flow dx/dt = v, with noise at t = 0 and data at t = 1.

    A field of average velocity also takes times (rows, 2), each the start t and the end s of a step, and returns the
    velocity that leads from the state at t to the one at s: x_s = x_t + (s - t) u(x_t, t, s). At s = t that is v.
    """

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,); returns (rows, *event) in the dtype of x.

        The condition has one row for each state (see `models.conditions`); None is no condition.
        """
        ...


@runtime_checkable
class HasForms(Protocol):
    """A field that can be computed in several ways."""

    def forms(self) -> Iterator[VelocityField]:
        """The ways of computing the field as it is now, the cheapest first; that one has the field's own bits.

        Later ones round differently. They are for kernels with which a row's bits depend on the other rows in the call.
        """
        ...


def forms(velocity: VelocityField) -> Iterator[VelocityField]:
    """The ways of computing a field (see `HasForms`); the field itself if it offers none."""
    return velocity.forms() if isinstance(velocity, HasForms) else iter((velocity,))


def refuse_condition(condition: Tensor | None) -> None:
    """Raise a VelocityError if an unconditional field is given a condition."""
    if condition is not None:
        raise VelocityError("condition was given, but this model is unconditional: leave condition out")
