"""What a velocity field is: the protocol that networks, analytic fields and wrappers all follow."""

from typing import Protocol

from torch import Tensor


class VelocityError(ValueError):
    """A velocity field was asked for, or answered with, something it must not."""


class VelocityField(Protocol):
    """A field `v(x, t)` of the flow dx/dt = v(x, t), with noise at t = 0 and data at t = 1."""

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,); returns (rows, *event) in the dtype of x."""
        ...


def refuse_condition(condition: Tensor | None) -> None:
    """Raise a VelocityError if an unconditional field is given a condition."""
    if condition is not None:
        raise VelocityError("condition was given, but this model is unconditional: leave condition out")
