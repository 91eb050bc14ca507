"""The divergence of a velocity field from vector-Jacobian products, beside the velocity itself.

The products are taken by `torch.autograd`: those of `torch.func` import torch's compiler at the first call, which takes
seconds and a hundred megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from solvers.state import Velocity, checked

PRODUCTS_AT_ONCE = 16
"""Products that are taken together, which bounds the memory of one call."""

Pull = Callable[[Tensor], Tensor]


def pullback(velocity: Velocity, x: Tensor, t: Tensor) -> tuple[Tensor, Pull]:
    """The velocity (rows, *event), and what takes one direction e a row, (rows, *event), to e J of each row.

    Args:
        velocity: (rows, *event), (rows,) -> (rows, *event), each row a function of that row alone.
        x: (rows, *event) states, not made in inference mode.
        t: (rows,) times, likewise.
    """
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        v = checked(velocity(at, t), tuple(at.shape), at.dtype, at.device)

    def pull(e: Tensor) -> Tensor:
        if not v.requires_grad:  # it does not depend on the state
            return torch.zeros_like(e)
        [found] = torch.autograd.grad(v, at, e, retain_graph=True, allow_unused=True)
        return torch.zeros_like(e) if found is None else found

    return v.detach(), pull


def exact(velocity: Velocity, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The velocity and its divergence (rows,), from one product for each number of a state.

    Args:
        velocity, x, t: as for `pullback`.
    """
    width = math.prod(x.shape[1:])
    basis = torch.eye(width, dtype=x.dtype, device=x.device).reshape(width, 1, *x.shape[1:])
    v, pull = pullback(velocity, x, t)
    # Rows do not depend on each other, so one product serves all rows.
    entries = torch.vmap(lambda e: _along(pull, e.expand_as(x)), chunk_size=PRODUCTS_AT_ONCE)(basis)
    return v, entries.sum(dim=0)


def hutchinson(velocity: Velocity, x: Tensor, t: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """The velocity and the mean (rows,) over probes e of e . (e J), whose expectation is the divergence.

    Args:
        velocity, x, t: as for `pullback`.
        probes: (probes, rows, *event) random vectors with independent entries of mean 0 and variance 1.

    References:
        Hutchinson 1990, A stochastic estimator of the trace of the influence matrix.
    """
    v, pull = pullback(velocity, x, t)
    if len(probes) == 1:
        return v, _along(pull, probes[0])
    return v, torch.vmap(lambda e: _along(pull, e), chunk_size=PRODUCTS_AT_ONCE)(probes).mean(dim=0)


def _along(pull: Pull, e: Tensor) -> Tensor:
    return (pull(e) * e).flatten(1).sum(dim=1)
