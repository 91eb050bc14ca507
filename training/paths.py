"""Conditional probability paths: how a noise sample and a data sample are joined."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Path(Protocol):
    """A conditional path between a noise sample `x0` (t = 0) and a data sample `x1` (t = 1)."""

    def position(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return x_t, shape (rows, *event), for times `t` of shape (rows,)."""
        ...

    def velocity(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return dx_t/dt, shape (rows, *event): the target of the regression."""
        ...


def _per_row(t: Tensor, like: Tensor) -> Tensor:
    """Give `t` (rows,) as many trailing axes of size 1 as `like` needs to broadcast."""
    return t.reshape(-1, *([1] * (like.ndim - 1)))


@dataclass(frozen=True)
class OptimalTransportPath:
    """The straight line x_t = (1 - t) x0 + t x1, walked at the constant velocity x1 - x0.

    Reference: Lipman et al., "Flow Matching for Generative Modeling", ICLR 2023, with sigma_min = 0; Liu et al., "Flow
    Straight and Fast", ICLR 2023.
    """

    def position(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return (1 - t) x0 + t x1. Shapes: x0, x1 (rows, *event); t (rows,) in [0, 1]."""
        t = _per_row(t, x0)
        return (1 - t) * x0 + t * x1

    def velocity(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return x1 - x0, the same at every t."""
        return x1 - x0
