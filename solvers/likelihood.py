"""Log-density of samples by the instantaneous change of variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.derived import log_density_field
from solvers.errors import SolverError, Status
from solvers.integrate import integrate_indexed
from solvers.plan import resolve
from solvers.state import Velocity, widened
from solvers.trace import StepTrace

EXACT_UP_TO = 16
"""The most dimensions for which `auto` takes the exact divergence; each costs a vector-Jacobian product per call."""

DIVERGENCES = ("auto", "exact", "hutchinson")


@dataclass(frozen=True)
class LogDensity:
    """The result of `log_density`.

    Attributes:
        log_p: (samples,) float64, in nats; NaN where `status` is not `success`.
        latent: (samples, *event) the noise that the samples come from.
        nfe: (samples,) int64 evaluations of the velocity, each together with its divergence.
        status: one `Status` per sample.
        trace: one entry for each attempted step.
        divergence: `exact` or `hutchinson`.
        settings: the solver as resolved.
    """

    log_p: Tensor
    latent: Tensor
    nfe: NDArray[np.int64]
    status: tuple[Status, ...]
    trace: StepTrace
    divergence: str
    settings: dict[str, object]


@torch.no_grad()
def log_density(
    velocity: Velocity,
    x: Tensor,
    *,
    solver: str = "dopri5",
    t_span: Sequence[float] = (1.0, 0.0),
    divergence: str = "auto",
    probes: int = 1,
    seed: int = 0,
    progress: bool = False,
    **settings: Any,
) -> LogDensity:
    """Return the log-density of samples under a flow that has a standard normal at the end of the span.

    x and log p are integrated together, as one state, from the data back to the noise:

        d log p(x(t)) / dt = -div v(x(t), t)

    so that the error norm covers both. The divergence comes from vector-Jacobian products of `torch.autograd`: its
    exact value in low dimensions, else the estimate e . (J e) with a Rademacher probe e, drawn once for each sample and
    kept along its path. The estimate of log p is unbiased if the path itself is exact; more `probes` reduce its spread.

    Args:
        velocity: (rows, *event), (rows,) -> (rows, *event), each row a function of that row alone. It must be
            differentiable by `torch.autograd` (no in-place changes of its input).
        x: (samples, *event) data, floating point; float64 gives more digits of log p. Data of half precision are summed
            in float32, with their velocity in half precision.
        solver, settings: how the path is solved, see `solvers.resolve`: `steps`, or `rtol` and `atol`, and others.
        t_span: (time of the data, time of the noise).
        divergence: `exact`, `hutchinson`, or `auto`: exact up to 16 dimensions.
        probes: Rademacher probes per sample for `hutchinson`, at least 1.
        seed: seed of the probes, in [0, 2^63).
        progress: see `solvers.integrate`.

    Raises:
        SolverError: as for `solvers.integrate`, and for an unknown divergence, or probes or a seed out of range.

    References:
        Chen et al. 2018, Neural ordinary differential equations, theorem 1. Grathwohl et al. 2019, FFJORD, eq. 8.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 1:
        raise SolverError("x", "x must be a floating-point tensor of shape (samples, *event)")
    dtype, width = x.dtype, math.prod(x.shape[1:])
    method = _check(divergence, probes, seed, width)
    probes = 0 if method == "exact" else probes
    derived = log_density_field(tuple(x.shape[1:]), probes)
    wide, x = widened(velocity, x)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (len(x), probes, *x.shape[1:]), generator=generator) * 2 - 1  # Rademacher probes
    drawn = signs.to(x.device, x.dtype).reshape(len(x), derived.constants)

    def field(state: Tensor, t: Tensor, index: NDArray[np.int64]) -> Tensor:
        query = torch.cat((state, drawn[torch.from_numpy(index).to(drawn.device)]), dim=1)
        return derived(wide, query, t)[:, : derived.width]

    plan = resolve(solver=solver, t_span=t_span, **settings, dtype=dtype)
    start = torch.cat((x.reshape(len(x), width), x.new_zeros(len(x), 1)), dim=1)
    solution = integrate_indexed(field, start, plan, progress=progress)
    latent = solution.x[:, :-1].double()
    base = -0.5 * (latent.square().sum(dim=1) + width * math.log(2 * math.pi))
    # The state's last entry is log p(noise) - log p(data), 0 at the data.
    log_p = base - solution.x[:, -1].double()
    failed = torch.tensor([status != Status.SUCCESS for status in solution.status], dtype=torch.bool)
    log_p[failed.to(log_p.device)] = math.nan
    latent = solution.x[:, :-1].reshape(x.shape).to(dtype)
    return LogDensity(log_p, latent, solution.nfe, solution.status, solution.trace, method, solution.settings)


def _check(divergence: str, probes: int, seed: int, width: int) -> str:
    if divergence not in DIVERGENCES:
        raise SolverError("divergence", f"unknown divergence {divergence!r}; use one of {', '.join(DIVERGENCES)}")
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 1:
        raise SolverError("probes", f"probes must be a whole number of at least 1, got {probes!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SolverError("seed", f"seed must be a whole number in [0, 2^63), got {seed!r}")
    if divergence == "auto":
        return "exact" if width <= EXACT_UP_TO else "hutchinson"
    return divergence
