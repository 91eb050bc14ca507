"""Jacobian spectra of a velocity field along the paths of samples: how stiff a flow is, and how unevenly it stretches.

At a state x and a time t, the Jacobian J = dv/dx describes how nearby paths diverge or converge. A large negative real
part of an eigenvalue limits the step of explicit methods; the condition number measures how differently directions are
stretched.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.derived import jacobian
from solvers.errors import SolverError, Status
from solvers.grids import TimesSpec
from solvers.integrate import Velocity, integrate_indexed
from solvers.plan import resolve
from solvers.saving import check_save_at
from solvers.state import widened

MAX_WIDTH = 256
"""The largest width of one sample; the cost of eigenvalues grows with its third power."""
MAX_NUMBERS = 1 << 24
"""The most entries of all Jacobians together, samples x times x width^2; it bounds memory and time."""
MAX_TIMES = 1000

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Spectrum:
    """Jacobian spectra of every sample at every time; NaN where a sample did not arrive or the Jacobian is not finite.

    Attributes:
        times: (M,) times at which the Jacobian was taken.
        real, imag: (samples, M, width) parts of the eigenvalues, by ascending real part.
        condition: (samples, M) largest over smallest singular value; infinite for a singular Jacobian.
        status: how each path ended.
    """

    times: Array
    real: Array
    imag: Array
    condition: Array
    status: tuple[Status, ...]


def stiffness(real: Array) -> Array:
    """Contraction rate of the fastest direction, per unit of t: the magnitude of the most negative real part, or 0.

    A method with real stability limit L (see `solvers.catalogue`) must take steps below L divided by this rate. As the
    span has length 1, the rate is also the number of time constants along the path (Hairer & Wanner II, IV.2).

    Args:
        real: (..., width) real parts of eigenvalues; NaN gives NaN.
    """
    return np.maximum(0.0, -real.min(axis=-1))


def stiffness_ratio(real: Array) -> Array:
    """How much faster the fastest direction moves than the slowest: largest over smallest absolute real part.

    It is infinite where the real part of an eigenvalue is zero (Lambert 1991, Numerical methods for ordinary
    differential systems, section 6.2).

    Args:
        real: as for `stiffness`.
    """
    size = np.abs(real)
    with np.errstate(divide="ignore", invalid="ignore"):
        return size.max(axis=-1) / size.min(axis=-1)


def spectrum(
    velocity: Velocity,
    x0: Tensor,
    times: TimesSpec,
    *,
    solver: str = "rk4",
    steps: int | None = 20,
    **settings: Any,
) -> Spectrum:
    """Follow samples from t = 0 to 1 and take the Jacobian of the velocity on the way.

    The cost is that of the paths, plus 2 x width network rows for each sample and time.

    Args:
        velocity: (rows, *event), (rows,) -> (rows, *event), each row a function of that row alone. It must be
            differentiable by `torch.autograd`. Bind the condition of a conditional field first.
        x0: (samples, *event) starting states, floating point, see `solvers.integrate`.
        times: strictly ascending times in [0, 1]. With fixed steps these must be grid points, up to rounding.
        solver, steps, settings: how the paths are solved (see `solvers.resolve`); `steps=None` for error control.

    Raises:
        SolverError: the solver's arguments contradict each other, a time is not allowed, or there are too many numbers
            or times; before anything is computed.
    """
    samples, width = len(x0), math.prod(x0.shape[1:])
    if width > MAX_WIDTH:
        raise SolverError("x0", f"a sample has {width} numbers; spectra allow at most {MAX_WIDTH}")
    if not 1 <= len(times) <= MAX_TIMES:
        raise SolverError("times", f"there are {len(times)} times; 1 to {MAX_TIMES} are allowed")
    if samples * len(times) * width**2 > MAX_NUMBERS:
        limit = MAX_NUMBERS // (len(times) * width**2)
        raise SolverError(
            "x0",
            f"{samples} samples at {len(times)} times with {width} x {width} Jacobians are too many; "
            f"use at most {limit} samples at this many times",
        )
    plan = resolve(solver=solver, steps=steps, **settings, dtype=x0.dtype)
    points = check_save_at(plan, times, "times")
    velocity, x0 = widened(velocity, x0)
    with torch.no_grad():
        solution = integrate_indexed(lambda x, t, _: velocity(x, t), x0, plan, points)
    assert points is not None and solution.saved is not None  # noqa: S101, PT018  (times were given)
    real, imag = np.full((2, samples, len(times), width), np.nan)
    condition = np.full((samples, len(times)), np.nan)
    for k, t in enumerate(points.tolist()):
        x = solution.saved[:, k]
        usable = x.flatten(1).isfinite().all(dim=1)
        if bool(usable.any()):
            place = np.flatnonzero(usable.cpu().numpy())
            at = x.new_full((len(place),), t)
            matrices = jacobian(velocity, x[usable], at).double().cpu().numpy()
            finite = np.isfinite(matrices).all(axis=(1, 2))
            lanes = place[finite]
            real[lanes, k], imag[lanes, k], condition[lanes, k] = decompose(matrices[finite])
    return Spectrum(points, real, imag, condition, solution.status)


def decompose(matrices: Array) -> tuple[Array, Array, Array]:
    """Return eigenvalues by ascending real part, as real and imaginary parts (n, width), and condition numbers (n,).

    Args:
        matrices: (n, width, width), all finite.
    """
    values = np.linalg.eigvals(matrices)
    order = np.argsort(values.real, axis=1, kind="stable")
    values = np.take_along_axis(values, order, axis=1)
    singular = np.linalg.svd(matrices, compute_uv=False)
    with np.errstate(divide="ignore", invalid="ignore"):
        condition = np.where(singular[:, -1] > 0, singular[:, 0] / singular[:, -1], np.inf)
    return values.real, values.imag, condition
