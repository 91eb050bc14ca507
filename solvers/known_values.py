"""Known values: samples of which some numbers are known, by replacement on the way or by guidance towards them.

On the straight path x_t = (1 - t) x0 + t x1, a number that ends at y has the velocity y - x0 at every t.

**Replacement** sets it: the known entries of every velocity become y - x0, and those of every state (1 - t) x0 + t y,
with the sample's own noise x0 (Lugmayr et al. 2022, RePaint, arXiv:2201.09865, in flow form). As velocities, stages,
error estimates and histories of any method agree with that line, nothing else in a solver need know of it. At t = 1 the
known entries are y to the bit. A path that starts at t0 > 0 in x goes along the line through x and y.

`resample` makes each step from t to t' > t several times. Before each repetition, noise brings x back from t' to t:

    x_t = (t / t') x_t' + sqrt((1 - t)^2 - (t / t')^2 (1 - t')^2) z,

which has the distribution of the path at t if x_t' has it at t', as the variances (1 - t')^2 and (1 - t)^2 of the noise
say. At t = 0 that is noise alone, which has forgotten the step; so a step that starts there is made once.

**Guidance** corrects the velocity of all entries. The score of p(x_t | y) is that of p(x_t) plus g, the gradient of
log p(y | x_t). As v = (x + (1 - t) s) / t (see `solvers.stochastic`), v changes by (1 - t) / t g. With the predicted
end e = x + (1 - t) v, its Jacobian J = de/dx, and p(x1 | x_t) about normal around e with the variance
r^2 = (1 - t)^2 / (t^2 + (1 - t)^2) that it has for standard normal data,

    v' = v + c(t) J^T W (y - e),    c(t) = min(max_weight, (1 - t) / (t r^2)),    1 / r^2 = 1 + (t / (1 - t))^2

(Pokle et al. 2024, arXiv:2310.04432, algorithm 1; with soft weights W from 0 to 1 and a bound, Black et al. 2025,
Real-time chunking, arXiv:2506.07339, eq. 2 to 4). c is infinite at both ends, hence the bound. For standard normal data
and no bound, v' is the velocity of p(x1 | y) exactly; else it is an approximation. J^T u = u + (1 - t) u dv/dx costs
one vector-Jacobian product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_WEIGHT = 5.0
"""The default bound of c(t), as Black et al. chose it."""


@dataclass(frozen=True, eq=False)
class KnownValues:
    """Numbers that are known of samples.

    Attributes:
        values: (m, *event) with m = 1 for all samples alike, or one row for each; NaN where nothing is known.
        weights: (m, *event) of guidance, from 0 (unknown) to 1; None for replacement.
        max_weight: the bound of c(t) of guidance.
    """

    values: Tensor
    weights: Tensor | None = None
    max_weight: float = MAX_WEIGHT

    def part(self, first: int, count: int) -> Tensor | None:
        """What replaces states of samples first .. first + count - 1: (count, *event), or (1, *event) for all alike."""
        if self.weights is not None:
            return None
        return self.values if len(self.values) == 1 else self.values[first : first + count]

    def constants(self) -> Tensor:
        """The rows (m, 2 D + 1) that `guided` takes for a sample: values, weights, max_weight."""
        assert self.weights is not None  # noqa: S101  (they are for guidance)
        bound = self.values.new_full((len(self.values), 1), self.max_weight)
        return torch.cat((self.values.nan_to_num(nan=0.0).flatten(1), self.weights.flatten(1), bound), dim=1)


def guided(x: Tensor, t: Tensor, v: Tensor, constants: Tensor, pull: Callable[[Tensor], Tensor]) -> Tensor:
    """Return v + c(t) (u + (1 - t) u dv/dx) for the weighted errors u = W (y - e) of the predicted ends, (n, *event).

    Args:
        x, v: (n, *event) states and their velocities.
        t: (n,) times.
        constants: (n, 2 D + 1), see `KnownValues.constants`.
        pull: u -> u dv/dx, both (n, *event).
    """
    values, weights, bound = constants.split([x[0].numel(), x[0].numel(), 1], dim=1)
    at, left = t.double(), _over(1 - t, x)
    error = weights.reshape(x.shape) * (values.reshape(x.shape) - (x + left * v))
    factor = torch.minimum((at * at + (1 - at) * (1 - at)) / (at * (1 - at)), bound[:, 0].double())
    return v + _over(factor.to(v.dtype), v) * (error + left * pull(error))


def _over(numbers: Tensor, x: Tensor) -> Tensor:
    """Reshape numbers (n,) so that they broadcast over x (n, *event)."""
    return numbers.reshape(-1, *([1] * (x.ndim - 1)))


def repeated(times: NDArray[np.float64], repeats: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the steps of a grid when each is made several times, and the noise that repeats them.

    Args:
        times: (N + 1,) the grid, ascending and within [0, 1].
        repeats: how often a step is made, unless it starts at 0.

    Returns:
        (M + 1,) the start and the ends of all M steps; equal ends in a row are one step repeated. (M, 2) for each step
        the factors of x_t' and of z that bring it back to its start afterwards; (1, 0) where it goes on.
    """
    counts = np.where(times[:-1] > 0, repeats, 1)
    step = np.repeat(np.arange(len(counts)), counts)
    t, end = times[step], times[step + 1]
    again = np.append(step[1:] == step[:-1], False)
    back = np.stack((t / end, np.sqrt((1 - t) ** 2 - (t / end * (1 - end)) ** 2)), axis=1)
    return np.append(times[0], end), np.where(again[:, None], back, (1.0, 0.0))
