"""Tuning: times and weights of a plan, learned for one velocity by minimising the endpoint error.

The plan is unrolled: x_(n+1) = x_n + c[n] x_0 + sum_j w[n, j] v_j, v_n = v(x_n, t_n), and the distances of its ends
from tight solutions are a nonlinear least-squares problem in all t, c and w (33 unknowns for 6 evaluations). Weights
here are (N, 1 + N), those of the starting state first: it is one more vector that is known. Samples are independent,
so a backward pass along one direction z of each state gives z^T J for all samples at once, and a few such passes
give the matrix J^T J of the Levenberg-Marquardt method. First only the times are fitted, for a stock method with
weights that follow from them; then times and weights together, starting from the best of those. Both begin on a part
of the paths, which is cheaper, and end on all of them.

References:
    Shaul et al. 2024, Bespoke Non-Stationary Solvers, arXiv:2403.01329. Frankel et al. 2025, S4S, arXiv:2502.17423.
    More 1978, The Levenberg-Marquardt algorithm, Lecture Notes in Mathematics 630.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.field import Field as Velocity
from selection.error import Ends
from solvers import SolverSpec
from solvers.plan import B, rows_on
from solvers.tuned import TunedPlan

Numbers = NDArray[np.float64]
Field = Callable[[Tensor, Tensor, slice], Tensor]
"""States (rows, *event) and times (rows,), float64, and the slice of all paths that they are -> velocities, float64."""

Unknowns = Callable[[Numbers], tuple[Numbers, Numbers, Numbers]]
"""Unknowns (P,) -> times (N + 1,), weights (N, 1 + N), and the derivatives of both, flat, (N + 1 + N (1 + N), P)."""

LEAST_STEP = 0.02
"""No step is shorter than this share of an equal one: two calls at one time would differ by rounding alone."""

_ROWS = 256
_MAX_DIRECTIONS = 6
_LONGEST_MOVE = 1.0  # of the logarithm of a step, in one iteration
_HOPELESS = 1e8
_CONVERGED = 1e-4
_FIRST_PART = 4  # a descent begins on one path in so many
_FEWEST_PATHS = 128


@dataclass(frozen=True)
class Calibration:
    """Calibration paths, with the ends that a plan should reach.

    Attributes:
        velocity: the velocity field.
        x0: (n, *event) starting states, float64.
        ends: (n, *event) the exact ends of their paths.
        spread: root mean square distance of the ends from their mean, the unit of errors.
    """

    velocity: Field
    x0: Tensor
    ends: Tensor
    spread: float

    @classmethod
    def of(cls, field: Velocity, x0: Tensor, ends: Ends) -> Self:
        """Return the paths of a model from x0 (n, *event), in the dtype of its weights."""

        def velocity(x: Tensor, t: Tensor, rows: slice) -> Tensor:
            return field(x.to(x0.dtype), t.to(x0.dtype), np.arange(rows.start, rows.stop)).double()

        return cls(velocity, x0.double(), ends.states, ends.spread)

    @torch.no_grad()
    def error(self, times: Numbers, weights: Numbers) -> float:
        """Return the root mean square distance from the ends, which is minimised, as a share of the spread.

        It is inf if a path diverges.
        """
        total = 0.0
        for rows in self._parts():
            x, terms = self.x0[rows], [self.x0[rows]]
            for n in range(len(weights)):
                terms.append(self.velocity(x, x.new_full((len(x),), times[n]), rows))
                x = _moved(x, weights[n], terms)
            total += float((x - self.ends[rows]).square().sum())
        return float(np.sqrt(total / len(self.x0))) / self.spread if np.isfinite(total) else np.inf

    def normal_equations(self, times: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
        """J^T r and J^T J of the residuals r = x_N - ends by times and weights, flat, (N + 1 + N (1 + N)).

        If a state has more numbers than `_MAX_DIRECTIONS`, J^T J is Hutchinson's estimate from Rademacher
        probes; J^T r is exact.
        """
        size = times.size + weights.size
        slope, square = np.zeros(size), np.zeros((size, size))
        width = self.x0[0].numel()
        exact = width <= _MAX_DIRECTIONS
        draw = np.random.default_rng(0)
        for rows in self._parts():
            x, terms, states, time_inputs = self.x0[rows], [self.x0[rows]], [], []
            for n in range(len(weights)):
                time_inputs.append(x.new_full((len(x),), times[n]).requires_grad_())
                terms.append(self.velocity(x, time_inputs[n], rows))
                x = _moved(x, weights[n], terms)
                states.append(x)
            r = (x - self.ends[rows]).detach()
            vectors = torch.stack(terms).detach().flatten(2)
            for place, z in enumerate(_directions(r, draw)):
                along = self._along(z, states, time_inputs, vectors)
                square += along.T @ along / (1 if exact else _MAX_DIRECTIONS)
                if exact:  # the directions are the axes
                    slope += r.flatten(1)[:, place].numpy() @ along
            if not exact:
                slope += self._along(r, states, time_inputs, vectors).sum(axis=0)
        return slope, square

    def first_part(self) -> Calibration:
        """The paths that a descent begins on."""
        count = max(_FEWEST_PATHS, len(self.x0) // _FIRST_PART)
        return Calibration(self.velocity, self.x0[:count], self.ends[:count], self.spread)

    @staticmethod
    def _along(z: Tensor, states: list[Tensor], time_inputs: list[Tensor], vectors: Tensor) -> Numbers:
        """Return z^T J of each row, (rows, N + 1 + N (1 + N))."""
        steps = len(states)
        grads = torch.autograd.grad(states[-1], [*states, *time_inputs], z, retain_graph=True, allow_unused=True)
        by_state = torch.stack([grad.flatten(1) for grad in grads[:steps] if grad is not None])
        by_time = torch.stack([time_inputs[0].new_zeros(len(z)) if grad is None else grad for grad in grads[steps:]])
        by_weight = torch.einsum("nrd,jrd->rnj", by_state, vectors)
        by_weight = by_weight * torch.ones(steps, 1 + steps, dtype=vectors.dtype).tril(1)
        end = by_time.new_zeros(1, len(z))  # there is no evaluation at the last time
        return torch.cat([torch.cat([by_time, end]).T, by_weight.flatten(1)], dim=1).numpy()

    def _parts(self) -> list[slice]:
        count = len(self.x0)  # slices end there: they also select conditions, of which there may be more
        return [slice(first, min(first + _ROWS, count)) for first in range(0, count, _ROWS)]


def _moved(x: Tensor, weights: Numbers, terms: list[Tensor]) -> Tensor:
    """Return the state after a step: x and the weighted sum of the starting state and the velocities so far."""
    return x + torch.tensordot(torch.from_numpy(weights[: len(terms)]), torch.stack(terms), dims=1)


def _directions(x: Tensor, draw: np.random.Generator) -> list[Tensor]:
    """Return directions shaped like x (rows, *event): the axes of a small state, or Rademacher probes."""
    width = x[0].numel()
    if width <= _MAX_DIRECTIONS:
        return [axis.reshape(1, *x.shape[1:]).expand_as(x) for axis in torch.eye(width, dtype=x.dtype)]
    return list(torch.from_numpy(draw.choice((-1.0, 1.0), (_MAX_DIRECTIONS, *x.shape))))


def stock_weights(spec: SolverSpec, times: Numbers) -> Numbers:
    """Return the weights (N, 1 + N), in units of t, of a stock method with one evaluation per step, for any times."""
    rows, count = rows_on(times, spec, spec.method), len(times) - 1
    slots, weights = np.zeros((rows.slots, 1 + count)), np.zeros((count, 1 + count))
    slot, keep = rows.records["slot"], rows.records["keep"]
    for n in range(count):
        slots[slot[n]] = np.eye(1 + count)[1 + n]
        weights[n] = (rows.weights[n, B] * (times[n + 1] - times[n])) @ slots
        if keep[n] >= 0:  # a step that later ones use is expanded into velocities
            slots[keep[n]] = weights[n]
    return weights


def tune_grid(paths: Calibration, spec: SolverSpec, iterations: int, tell: Callable[[float], None]) -> Numbers:
    """Return tuned times (N + 1,) for a stock method with one evaluation per step.

    Args:
        paths: the calibration paths.
        spec: method and steps.
        iterations: limit on the iterations from each of two starts, and again on those that end the better one.
        tell: called after each iteration with the error.
    """
    count = spec.steps or 1

    def unknowns(p: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        times, by_p = _times(p)
        by_times = np.zeros((count * (1 + count), count + 1))
        for k in range(1, count):
            step = 1e-5 * min(times[k] - times[k - 1], times[k + 1] - times[k])
            ahead, behind = times.copy(), times.copy()
            ahead[k], behind[k] = times[k] + step, times[k] - step
            by_times[:, k] = ((stock_weights(spec, ahead) - stock_weights(spec, behind)) / (2 * step)).ravel()
        return times, stock_weights(spec, times), np.concatenate([by_p, by_times @ by_p])

    starts = (np.zeros(count), np.log(np.linspace(2.0, 0.7, count)))
    descents = [_descend(paths.first_part(), p, unknowns, count, iterations, tell) for p in starts]
    best = min(descents, key=lambda descent: descent[1])[0]
    return _times(_descend(paths, best, unknowns, count, iterations, tell)[0])[0]


def tune_plan(
    paths: Calibration, times: Numbers, weights: Numbers, iterations: int, tell: Callable[[float], None]
) -> TunedPlan:
    """Return the times and weights of a learned plan.

    Args:
        paths: the calibration paths.
        times, weights: initial values, (N + 1,) and (N, 1 + N).
        iterations: limit on the iterations on a part of the paths, and again on all.
        tell: called after each iteration with the error.
    """
    count = len(weights)
    lower = np.tril_indices(count, 1, 1 + count)
    places = np.ravel_multi_index(lower, (count, 1 + count))

    def unknowns(p: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        t, by_p = _times(p[:count])
        w = np.zeros((count, 1 + count))
        w[lower] = p[count:]
        change = np.zeros((count + 1 + count * (1 + count), len(p)))
        change[: count + 1, :count] = by_p
        change[count + 1 + places, count + np.arange(len(places))] = 1.0
        return t, w, change

    start = np.concatenate([_unknowns(times), weights[lower]])
    begun, _ = _descend(paths.first_part(), start, unknowns, count, iterations, tell)
    better = min((start, begun), key=lambda p: paths.error(*unknowns(p)[:2]))
    p, _ = _descend(paths, better, unknowns, count, iterations, tell)
    t, w, _ = unknowns(p)
    return TunedPlan(t, w[:, 1:], w[:, 0])


def _descend(
    paths: Calibration, p: Numbers, unknowns: Unknowns, logs: int, iterations: int, tell: Callable[[float], None]
) -> tuple[Numbers, float]:
    """Levenberg-Marquardt from p (P,), the first `logs` of which are logarithms of steps: best p and error."""
    times, weights, change = unknowns(p)
    error, damping = paths.error(times, weights), 1e-3
    small = 0
    for _ in range(iterations):
        tell(error)
        slope, square = paths.normal_equations(times, weights)
        slope, square = change.T @ slope, change.T @ square @ change
        scale = np.diag(square) + 1e-12 * np.trace(square)
        while True:
            move = -np.linalg.lstsq(square + damping * np.diag(scale), slope, rcond=None)[0]
            move *= min(1.0, _LONGEST_MOVE / max(float(np.abs(move[:logs]).max()), 1e-300))
            tried = unknowns(p + move)
            after = paths.error(tried[0], tried[1])
            if after < error:
                break
            damping *= 4
            if damping > _HOPELESS:
                return p, error
        small = small + 1 if after > (1 - _CONVERGED) * error else 0
        p, error, (times, weights, change), damping = p + move, after, tried, max(damping / 5, 1e-9)
        if small == 3:
            break
    return p, error


def _times(p: Numbers) -> tuple[Numbers, Numbers]:
    """Increasing times (N + 1,) from 0 to 1, and derivatives (N + 1, N), for N logarithms of steps up to a shift."""
    count = len(p)
    shares = np.exp(p - p.max())
    shares /= shares.sum()
    times = np.append(0.0, np.cumsum((1 - LEAST_STEP) * shares + LEAST_STEP / count))
    times[-1] = 1.0
    covered = np.append(0.0, np.cumsum(shares))
    covered[-1] = 1.0
    before = np.arange(count + 1)[:, None] > np.arange(count)[None, :]
    return times, (1 - LEAST_STEP) * shares * (before - covered[:, None])


def _unknowns(times: Numbers) -> Numbers:
    """The inverse of `_times`."""
    steps = np.diff(times)
    return np.log(np.maximum((steps - LEAST_STEP / len(steps)) / (1 - LEAST_STEP), 1e-3 / len(steps)))
