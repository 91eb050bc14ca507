"""What goes into the lanes and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.errors import SolverError
from solvers.plan import Plan


@dataclass(frozen=True)
class Admission:
    """Trajectories to start together.

    Attributes:
        solve: what they follow.
        x0: (n, *event) starting states; copied.
        owner: whose they are; any integer, given back when they end.
        first_index: the first one's index within its owner's samples; the others count up from it.
        save_at: (M,) float64 times to save the state at, in the direction of the span, or None.
    """

    solve: Plan
    x0: Tensor
    owner: int = 0
    first_index: int = 0
    save_at: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Finished:
    """Lanes that ended, in lane order.

    Attributes:
        owner, index: (n,) whose, and which sample.
        x: (n, *event) the state reached: the last finite one for a lane that failed.
        t: (n,) float64 the time reached.
        nfe: (n,) calls.
        status: (n,) codes, see `errors.status_of`.
        attempts: (n,) how many steps of each lane stand in `steps` (0 for plans, whose trace is their grid).
        steps: (sum, 5) t, h, error, accepted, stiffness of those, lane by lane.
        grid_steps: (n,) steps that a plan's lane completed; 0 under error control.
    """

    owner: NDArray[np.int64]
    index: NDArray[np.int64]
    x: Tensor
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    status: NDArray[np.int64]
    attempts: NDArray[np.int64]
    steps: NDArray[np.float64]
    grid_steps: NDArray[np.int64]


@dataclass(frozen=True)
class Saved:
    """States at save times: owner (n,), index (n,), place in the owner's save_at (n,), x (n, D)."""

    owner: NDArray[np.int64]
    index: NDArray[np.int64]
    place: NDArray[np.int64]
    x: Tensor


def checked(v: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The velocity, if it fits the states it was asked for.

    Compiled loops read its memory by address: nothing but this stands between a wrong tensor and a wrong place.

    Raises:
        SolverError: naming what came and what was expected.
    """
    if isinstance(v, Tensor) and v.shape == shape and v.dtype == dtype and v.device == device:
        return v
    found = f"{tuple(v.shape)} {v.dtype} on {v.device}" if isinstance(v, Tensor) else type(v).__name__
    raise SolverError(
        "velocity",
        f"the velocity must return a tensor like x, {shape} {dtype} on {device}, but returned {found}",
    )
