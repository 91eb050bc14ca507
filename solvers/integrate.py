"""`integrate`: solve one velocity field for many samples, offline."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from solvers.errors import CODES, STATUSES, SolverError, Status
from solvers.grids import GridSpec, TimesSpec
from solvers.lanes import Admission, Lanes
from solvers.plan import Plan, resolve
from solvers.saving import check_save_at
from solvers.state import Velocity, widened
from solvers.stochastic import Diffusion
from solvers.trace import StepTrace, quantiles_by_bin
from solvers.tuned import TunedPlans

IndexedVelocity = Callable[[Tensor, Tensor, NDArray[np.int64]], Tensor]


_TIMES = {"t", "time", "times", "timestep", "timesteps"}
"""Names of a first argument that is the time."""


@dataclass(frozen=True, repr=False)
class Solution:
    """The result of `integrate`.

    Attributes:
        x: (samples, *event) states at the end of the span; for a sample that failed, the last finite one.
        t: (samples,) float64 times reached.
        nfe: (samples,) int64 velocity evaluations of each sample.
        status: one `Status` per sample.
        trace: one entry for each attempted step.
        saved: (samples, M, *event) states at `save_at`, NaN if a sample did not get there; None without `save_at`.
        settings: the solver as resolved.
    """

    x: Tensor
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    status: tuple[Status, ...]
    trace: StepTrace
    saved: Tensor | None
    settings: dict[str, object]

    def __repr__(self) -> str:
        """Return a line of numbers in place of the arrays."""
        ends = ", ".join(f"{count} {status}" for status, count in Counter(map(str, self.status)).items())
        nfe = f"nfe {self.nfe.min()} to {self.nfe.max()}, mean {self.nfe.mean():.1f}" if len(self.nfe) else "nfe 0"
        return (
            f"Solution({self.settings.get('name')}: x {tuple(self.x.shape)} {self.x.dtype}; {nfe}; {ends or 'empty'})"
        )


@torch.no_grad()
def integrate(
    velocity: Velocity,
    x0: Tensor,
    *,
    solver: str = "dopri5",
    steps: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    t_span: Sequence[float] = (0.0, 1.0),
    grid: GridSpec = "uniform",
    start: str | None = None,
    diffusion: Diffusion | Mapping[str, Any] | None = None,
    error_control: str = "sample",
    controller: str | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    max_nfe: int = 10_000,
    save_at: TimesSpec | None = None,
    tuned: TunedPlans | None = None,
    seed: int = 0,
    resample: int = 1,
    known: Tensor | None = None,
    progress: bool = False,
) -> Solution:
    """Solve dx/dt = velocity(x, t) for many samples at once, each on its own.

    No gradients are passed: the result is detached from x0 and from the weights of the velocity. To differentiate
    through a solver, use `torchdiffeq.odeint` or `odeint_adjoint`.

    Args:
        velocity: (rows, *event), (rows,) -> (rows, *event); any function or torch module. It sees only samples that are
            still running. Its arguments and its result have x0's dtype and device. One whose first argument is called
            `t` or `time` is called as velocity(t, x), as in torchdiffeq and SciPy.
        x0: (samples, *event) starting states, floating point; may be empty. Those of half precision are summed in
            float32, and the results rounded once.
        solver, steps, rtol, atol, t_span, grid, start, diffusion, error_control, controller, first_step, max_step,
            max_nfe: see `solvers.resolve`.
        save_at: times to keep the state at, in the direction of the span. With fixed steps these must be grid points,
            up to rounding (see `solvers.grids`); under error control dopri5 and tsit5 use their own dense output (of
            order 4), bosh3 cubic Hermite interpolation. None of them takes another call.
        tuned: plans tuned for this velocity, so that `solver` can be `tuned-6` or `ab4-9/tuned`.
        seed: chooses the noise of stochastic solvers (`sde`, `sde_heun`), in [0, 2^63); that of sample i is the same in
            the service, and independent of its starting noise of the same seed.
        resample: how often each step is made, see `solvers.known_values`.
        known: (samples, *event) or (1, *event) numbers of the samples that are known, NaN where none is: they replace
            those on the way, and are reached exactly at t = 1. The span then goes forwards, within [0, 1].
        progress: show a progress bar on stderr, with the share of the span that the slowest sample has covered.

    Raises:
        SolverError: for arguments that contradict each other or cannot be met, and for a velocity that returns another
            shape, dtype or device. Exceptions raised by `velocity` itself propagate.
    """
    if not isinstance(x0, Tensor) or not x0.is_floating_point() or x0.ndim < 1:
        raise SolverError("x0", "x0 must be a floating-point tensor of shape (samples, *event)")
    if x0.requires_grad:
        text = (
            "x0 requires gradients, and integrate passes none; use torchdiffeq.odeint to differentiate through a solver"
        )
        warnings.warn(text, stacklevel=3)  # the caller of the function that no_grad wraps
    plan = resolve(
        solver=solver, steps=steps, rtol=rtol, atol=atol, grid=grid, start=start, diffusion=diffusion,
        error_control=error_control, controller=controller, first_step=first_step, max_step=max_step, max_nfe=max_nfe,
        t_span=t_span, resample=resample, dtype=x0.dtype, tuned=tuned,
    )  # fmt: skip
    if known is not None:
        _check_known(known, x0, plan)
    points = check_save_at(plan, save_at)
    field, wide = widened(_in_our_order(velocity), x0)
    solution = _drive(lambda x, t, _: field(x, t), wide, plan, points, progress, seed=seed, known=known)
    saved = None if solution.saved is None else solution.saved.to(x0.dtype)
    return replace(solution, x=solution.x.to(x0.dtype), saved=saved)


def _check_known(known: Tensor, x0: Tensor, plan: Plan) -> None:
    if known.shape[1:] != x0.shape[1:] or len(known) not in (1, len(x0)):
        shape = tuple(x0.shape)
        raise SolverError("known", f"known has shape {tuple(known.shape)}; it must be {shape} or {(1, *shape[1:])}")
    if known.isinf().any():
        raise SolverError("known", "known holds an infinite number; use NaN where nothing is known")
    start, end = plan.t_span
    if not 0 <= start < end <= 1:
        raise SolverError(
            "known", f"known is for spans from noise to data, not from {start:g} to {end:g}; leave it out"
        )


def _in_our_order(velocity: Velocity) -> Velocity:
    """Return a function of (x, t), from one that takes (t, x) by the names of its arguments."""
    try:
        function = velocity.forward if isinstance(velocity, torch.nn.Module) else velocity
        names = [name.lower() for name in inspect.signature(function).parameters][:2]
    except (TypeError, ValueError):  # of a builtin
        return velocity
    if len(names) < 2 or names[0] not in _TIMES or names[1] in _TIMES:
        return velocity
    return lambda x, t: velocity(t, x)


def integrate_indexed(
    velocity: IndexedVelocity,
    x0: Tensor,
    plan: Plan,
    save_at: NDArray[np.float64] | None = None,
    progress: bool = False,
    step_ends: bool = False,
) -> Solution:
    """Like `integrate`, for a plan and a velocity that also receives the indices of its samples.

    Args:
        velocity: states (rows, *event), times (rows,), sample indices (rows,) -> (rows, *event).
        x0: (samples, *event) starting states.
        plan: the compiled solver that the samples follow.
        save_at: the times that `solvers.saving.check_save_at` returned.
        progress: show a progress bar.
        step_ends: whether the velocity also receives where the step ends; its times are then (rows, 2). Only on grids.

    Raises:
        SolverError: the plan is stochastic; this is for measurements and pairs, which follow the ODE.
    """
    if plan.spec.noisy:
        raise SolverError("solver", f"{plan.spec} is stochastic, and this follows the ODE: use a solver without noise")
    return _drive(
        lambda x, t, lanes: velocity(x, t, lanes.records["index"].copy()), x0, plan, save_at, progress, step_ends
    )


def _drive(
    velocity: Callable[[Tensor, Tensor, Lanes], Tensor],
    x0: Tensor,
    plan: Plan,
    save_at: NDArray[np.float64] | None,
    progress: bool,
    step_ends: bool = False,
    seed: int = 0,
    known: Tensor | None = None,
) -> Solution:
    n, settings = len(x0), dict(plan.settings)
    x, saved = x0.new_empty(x0.shape), None
    if save_at is not None:
        saved = x0.new_full((n, len(save_at), *x0.shape[1:]), np.nan)
    t, (nfe, code, grid_steps) = np.zeros(n), np.zeros((3, n), dtype=np.int64)
    samples, steps = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 5))]
    lanes = Lanes(tuple(x0.shape[1:]), x0.dtype, x0.device, slots=max(plan.rows.slots, 2), step_ends=step_ends)
    lanes.admit([Admission(plan, x0, save_at=save_at, seed=seed, known=known)])
    finished = lanes.collect()
    bar_format = "{l_bar}{bar}| {n:.3f} of the span [{elapsed}<{remaining}]"
    # Even a hidden bar would take a semaphore of the operating system, which a killed process leaves behind.
    with tqdm(total=1.0, bar_format=bar_format) if progress else nullcontext() as bar:
        while True:
            if saved is not None:
                for part in lanes.take_saved():
                    where = (torch.from_numpy(part.index), torch.from_numpy(part.place))
                    saved[where] = part.x.reshape(-1, *x0.shape[1:])
            if finished is not None:
                index = finished.index
                x[torch.from_numpy(index)], t[index], nfe[index] = finished.x, finished.t, finished.nfe
                code[index], grid_steps[index] = finished.status, finished.grid_steps
                samples.append(np.repeat(index, finished.attempts))
                steps.append(finished.steps)
            if not len(lanes):
                break
            finished = lanes.absorb(velocity(*lanes.query(), lanes))
            if bar is not None:
                bar.n = float(lanes.shares().min(initial=1.0))
                bar.update(0)
    status = tuple(STATUSES[one - 1] for one in code.tolist())
    if plan.times is None:
        sample = np.concatenate(samples)
        order = np.argsort(sample, kind="stable")
        trace = StepTrace.build(sample[order], np.concatenate(steps)[order])
    else:
        trace = StepTrace.of_grid(plan.times, grid_steps, code == CODES[Status.NON_FINITE])
    return Solution(x, t, nfe, status, trace, saved, settings)


def warm_up(dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
    """Compile the loops for this dtype, which takes seconds unless their machine code is cached on disk."""
    x0 = torch.tensor([[1.0], [3.0]], dtype=dtype, device=device)
    integrate(lambda x, t: -x, x0, solver="euler", steps=1)
    # The second lane's velocity is infinite: it ends at once, and the gap it leaves is closed.
    integrate(lambda x, t: -x / (x < 2), x0, error_control="batch", rtol=1e-3, atol=1e-3)
    quantiles_by_bin(np.zeros(1), np.zeros(1), np.arange(2.0), np.zeros(1))
