"""Fields made of a velocity and its derivatives, asked in the same way as a velocity.

A query's row is flat: the state of such a field, then its constants, numbers that belong to the row and whose own rate
is zero (random directions, a place to take the Jacobian at). Both fields are linear in velocities, so classifier-free
guidance over them (`models.guidance`) is guidance of the velocity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from models.noise import noise
from models.velocity import VelocityField, forms
from solvers import derived as divergence


class DerivedField(Protocol):
    """A field of flat rows.

    Attributes:
        width: numbers of the state.
        constants: numbers of a row after those of the state.
    """

    width: int
    constants: int

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate queries x (rows, width + constants) at times t (rows,); the rates of the constants are zeros."""
        ...

    def examples(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Queries as they may come, on the CPU, no two alike."""
        ...


class LogDensityField:
    """The rate of [x, log p] along the flow: [v, -div v], with log p counted from the start of the path.

    With the exact divergence a row has no constants; the estimate wants random signs, one for each number of x.

    References:
        Chen et al. 2018, Neural ordinary differential equations, theorem 1. Grathwohl et al. 2019, FFJORD, eq. 8.
    """

    def __init__(self, velocity: VelocityField, event_shape: tuple[int, ...], exact: bool) -> None:
        self._velocity, self._event_shape, self._exact = velocity, event_shape, exact
        self._size = math.prod(event_shape)
        self.width, self.constants = self._size + 1, 0 if exact else self._size

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate rows [x, log p] or [x, log p, signs] at times t (rows,)."""
        with torch.inference_mode(False), torch.no_grad():
            query, t, condition = _plain(x), _plain(t), None if condition is None else _plain(condition)
            velocity = _bound(self._velocity, condition)
            place, _, signs = query.split([self._size, 1, self.constants], dim=1)
            place = place.reshape(-1, *self._event_shape)
            if self._exact:
                v, div = divergence.exact(velocity, place, t)
            else:
                v, div = divergence.hutchinson(velocity, place, t, signs.reshape(1, *place.shape))
            return torch.cat((v.flatten(1), -div[:, None], torch.zeros_like(signs)), dim=1)

    def forms(self) -> Iterator[LogDensityField]:
        """One for each way of computing the velocity."""
        for form in forms(self._velocity):
            yield LogDensityField(form, self._event_shape, self._exact)

    def examples(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Noise, with noise for signs."""
        return noise(0, 0, rows, (self.width + self.constants,), dtype)


class JacobianField:
    """Rows of the Jacobian dv/dx: row i at (x, t) is the rate of a state whose constants are [x, t, i].

    So one Euler step of length 1 from zero gives that row, at the cost of one vector-Jacobian product.
    """

    def __init__(self, velocity: VelocityField, event_shape: tuple[int, ...]) -> None:
        self._velocity, self._event_shape = velocity, event_shape
        self.width = math.prod(event_shape)
        self.constants = self.width + 2

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate rows [state, x, t, i]; the time of the call does not matter."""
        with torch.inference_mode(False), torch.no_grad():
            query, condition = _plain(x), None if condition is None else _plain(condition)
            _, place, at, row = query.split([self.width, self.width, 1, 1], dim=1)
            place = place.reshape(-1, *self._event_shape)
            direction = torch.nn.functional.one_hot(row[:, 0].long(), self.width).to(place.dtype)
            _, pull = divergence.pullback(_bound(self._velocity, condition), place, at[:, 0])
            found = pull(direction.reshape(place.shape)).flatten(1)
            return torch.cat((found, query.new_zeros(len(query), self.constants)), dim=1)

    def forms(self) -> Iterator[JacobianField]:
        """One for each way of computing the velocity."""
        for form in forms(self._velocity):
            yield JacobianField(form, self._event_shape)

    def examples(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Places along the path, in turn for each row of the Jacobian."""
        places = noise(0, 0, rows, (self.width,), dtype)
        t, row = torch.linspace(0.0, 1.0, rows, dtype=dtype), torch.arange(rows) % self.width
        return torch.cat((torch.zeros_like(places), places, t[:, None], row[:, None].to(dtype)), dim=1)


def _plain(tensor: Tensor) -> Tensor:
    """A copy that derivatives can be taken of, whatever mode the tensor was made in."""
    return tensor.clone()


def _bound(velocity: VelocityField, condition: Tensor | None) -> divergence.Velocity:
    return lambda x, t: velocity(x, t) if condition is None else velocity(x, t, condition)
