"""Derived fields: made from a velocity and its derivatives (divergence, Jacobian products), two of them for lanes.

`log_density` and `spectrum` use them offline, the engine's operations online. Products are computed by
`torch.autograd`; `torch.func` would import torch's compiler at the first call, which takes seconds and a hundred
megabytes.

A derived field is an operator: it takes a velocity and evaluates another field at flat rows. A row is the state of that
field followed by the row's constants, which have a rate of zero: Rademacher probes, or the point at which the Jacobian
is taken. All derived fields are linear in the velocity, so applying classifier-free guidance to one is the same as
applying it to the velocity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from solvers.state import Velocity, checked

PRODUCTS_AT_ONCE = 16
"""The most products that are computed together; it bounds the memory of one call."""

Pull = Callable[[Tensor], Tensor]


def pullback(velocity: Velocity, x: Tensor, t: Tensor) -> tuple[Tensor, Pull]:
    """Return the velocity v (rows, *event), and the map from directions e to e J, both (rows, *event), for J = dv/dx.

    Args:
        velocity: (rows, *event), (rows,) -> (rows, *event), each row a function of that row alone.
        x: (rows, *event) states, not created in inference mode.
        t: (rows,) times, likewise.

    Raises:
        SolverError: the velocity differs from its states in shape, dtype or device.
    """
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        v = checked(velocity(at, t), tuple(at.shape), at.dtype, at.device)

    def pull(e: Tensor) -> Tensor:
        if not v.requires_grad:  # it does not depend on the state
            return torch.zeros_like(e)
        [product] = torch.autograd.grad(v, at, e, retain_graph=True, allow_unused=True)
        return torch.zeros_like(e) if product is None else product

    return v.detach(), pull


def jacobian(velocity: Velocity, x: Tensor, t: Tensor) -> Tensor:
    """Return the Jacobian dv_i/dx_j of every row, (rows, width, width); width is the number of entries of a state.

    Args:
        velocity, x, t: as for `pullback`.
    """
    _, pull = pullback(velocity, x, t)
    # Rows do not depend on each other, so one product gives row i of every sample's Jacobian.
    rows = torch.vmap(lambda e: pull(e.expand_as(x)).flatten(1), chunk_size=PRODUCTS_AT_ONCE)(_basis(x))
    return rows.transpose(0, 1)


def divergence(velocity: Velocity, x: Tensor, t: Tensor, probes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the velocity and its divergence (rows,): exact, from one product for each entry of a state, or estimated.

    Args:
        velocity, x, t: as for `pullback`.
        probes: (probes, rows, *event) vectors e with independent entries of mean 0 and variance 1: the mean of
            e . (e J) over them is an unbiased estimate. None for the exact divergence.

    References:
        Hutchinson 1990, A stochastic estimator of the trace of the influence matrix.
    """
    v, pull = pullback(velocity, x, t)

    def along(e: Tensor) -> Tensor:
        e = e.expand_as(x)
        return (pull(e) * e).flatten(1).sum(dim=1)

    if probes is None:
        return v, torch.vmap(along, chunk_size=PRODUCTS_AT_ONCE)(_basis(x)).sum(dim=0)
    if len(probes) == 1:
        return v, along(probes[0])
    return v, torch.vmap(along, chunk_size=PRODUCTS_AT_ONCE)(probes).mean(dim=0)


def _basis(x: Tensor) -> Tensor:
    """Unit vectors of one state of x, (width, 1, *event)."""
    width = math.prod(x.shape[1:])
    return torch.eye(width, dtype=x.dtype, device=x.device).reshape(width, 1, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class DerivedField:
    """An operator on velocities.

    Attributes:
        width: number of entries of the state.
        constants: number of constants, which follow the state in a row.
        rates: a velocity without conditions, rows (n, width + constants), times (n,) -> rates of the states (n, width).
        examples: standard normal numbers (n, width + constants) -> valid rows of this shape, no two alike.
    """

    width: int
    constants: int
    rates: Callable[[Velocity, Tensor, Tensor], Tensor]
    examples: Callable[[Tensor], Tensor] = lambda noise: noise

    def __call__(self, velocity: Callable[..., Tensor], x: Tensor, t: Tensor, *conditions: Tensor) -> Tensor:
        """Evaluate the field of a velocity; the rates of the constants are zeros.

        Args:
            velocity: states (rows, *event), times (rows,) and conditions -> (rows, *event).
            x: (rows, width + constants).
            t: (rows,).
            conditions: one row each for every row of x.

        Returns:
            (rows, width + constants)
        """
        with torch.inference_mode(False), torch.no_grad():
            rates = self.rates(_bound(velocity, conditions), x.clone(), t.clone())
            return torch.cat((rates, rates.new_zeros(len(rates), self.constants)), dim=1)


def log_density_field(event_shape: tuple[int, ...], probes: int = 0) -> DerivedField:
    """Return the rate of [x, log p] along the flow: [v, -div v], with log p counted from the start of the path.

    Args:
        event_shape: shape of x.
        probes: number of probes for Hutchinson's estimate; they are the row's constants. 0 for the exact divergence.

    References:
        Chen et al. 2018, Neural ordinary differential equations, theorem 1. Grathwohl et al. 2019, FFJORD, eq. 8.
    """
    width = math.prod(event_shape)

    def rates(velocity: Velocity, rows: Tensor, t: Tensor) -> Tensor:
        x, _, drawn = rows.split([width, 1, probes * width], dim=1)
        directions = drawn.reshape(len(rows), probes, *event_shape).transpose(0, 1) if probes else None
        v, change = divergence(velocity, x.reshape(-1, *event_shape), t, directions)
        return torch.cat((v.flatten(1), -change[:, None]), dim=1)

    return DerivedField(width + 1, probes * width, rates)


def jacobian_field(event_shape: tuple[int, ...]) -> DerivedField:
    """Return rows of the Jacobian dv/dx: row i at (x, t) is the rate of a state with the constants [x, t, i].

    One Euler step of length 1 from zero therefore gives that row, at the cost of one vector-Jacobian product. The time
    of the call is ignored.
    """
    width = math.prod(event_shape)

    def rates(velocity: Velocity, rows: Tensor, _: Tensor) -> Tensor:
        _, x, at, row = rows.split([width, width, 1, 1], dim=1)
        x = x.reshape(-1, *event_shape)
        direction = torch.nn.functional.one_hot(row[:, 0].long(), width).to(x.dtype)
        return pullback(velocity, x, at[:, 0])[1](direction.reshape(x.shape)).flatten(1)

    def examples(noise: Tensor) -> Tensor:
        """States at times spread over the span; the rows of the Jacobian come in turn."""
        x = noise[:, width : 2 * width]
        t, row = torch.linspace(0.0, 1.0, len(x), dtype=x.dtype), torch.arange(len(x)) % width
        return torch.cat((torch.zeros_like(x), x, t[:, None], row[:, None].to(x.dtype)), dim=1)

    return DerivedField(width, width + 2, rates, examples)


def pulled_rows(velocity: Callable[..., Tensor], rows: Tensor, t: Tensor, *conditions: Tensor) -> Tensor:
    """Return rows [e J, 0] for rows [x, e], both (rows, 2, *event), with the Jacobian J = dv/dx at x.

    Args:
        velocity, t, conditions: see `DerivedField`.
        rows: states x, each followed by a direction e.
    """
    with torch.inference_mode(False), torch.no_grad():
        x, e = rows.clone().unbind(1)
        _, pull = pullback(_bound(velocity, conditions), x, t.clone())
        product = pull(e)
        return torch.stack((product, torch.zeros_like(product)), dim=1)


def _bound(velocity: Callable[..., Tensor], conditions: Sequence[Tensor]) -> Velocity:
    """Bind copies of the conditions to the velocity; autograd cannot use tensors that were made in inference mode."""
    copies = [condition.clone() for condition in conditions]
    return lambda x, t: velocity(x, t, *copies)
