"""Analytic velocity fields with known flows, against which solvers and the running service are checked.

Along the path x_t = (1 - t) x0 + t x1 with x0 ~ N(0, I) and independent x1 ~ N(m, s^2 I), the marginal at t
is N(t m, sigma_t^2 I) with sigma_t^2 = (1 - t)^2 + t^2 s^2, and the marginal velocity is

    v(x, t) = m + (t s^2 - (1 - t)) / sigma_t^2 * (x - t m)

(Lipman et al., "Flow matching for generative modeling", 2023, theorem 3 with this mean and spread). Its flow
map is x(t) = t m + sigma_t x(0), so x(1) = m + s x(0).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models.conditions import NamedCondition, one_condition, tensors_of
from models.network import Network, NetworkConfig
from models.velocity import refuse_condition


class GaussianConfig(NetworkConfig):
    """A Gaussian target N(m, s^2 I).

    Attributes:
        dim: length of one sample.
        m: mean of every coordinate.
        s: standard deviation of every coordinate.
    """

    architecture: Literal["gaussian"] = "gaussian"
    dim: int = Field(default=2, ge=1, le=1 << 20)
    m: float = Field(default=2.0, allow_inf_nan=False)
    s: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)

    def build(self) -> Gaussian:
        return Gaussian(self)


class Gaussian(Network[GaussianConfig]):
    """The velocity that carries N(0, I) to N(m, s^2 I); the exact end of a path is `exact(x0)`."""

    def __init__(self, config: GaussianConfig | None = None) -> None:
        config = GaussianConfig() if config is None else config
        super().__init__(config, (config.dim,))

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, dim) at times t (rows,); a condition raises a VelocityError."""
        refuse_condition(condition)
        t = t[:, None]
        return self.config.m + _slope(t, self.config.s) * (x - t * self.config.m)

    def exact(self, x0: Tensor, t: float = 1.0) -> Tensor:
        """Return the states at time t, in [0, 1], of the paths that start at x0, (rows, dim)."""
        return t * self.config.m + math.sqrt((1 - t) ** 2 + (t * self.config.s) ** 2) * x0


class MixtureConfig(NetworkConfig):
    """Equally likely Gaussians N(m_k, s^2 I) with means evenly spaced on a circle in the plane.

    By default neighbours are ten standard deviations apart, so that the modes are well separated.

    Attributes:
        components: number of Gaussians.
        radius: radius of the circle.
        s: standard deviation of each Gaussian.
        conditional: whether a class label is taken, the number of the Gaussian where paths end; the null means any.
    """

    architecture: Literal["mixture"] = "mixture"
    components: int = Field(default=8, ge=1, le=1024)
    radius: float = Field(default=4.0, gt=0.0, allow_inf_nan=False)
    s: float = Field(default=0.3, gt=0.0, allow_inf_nan=False)
    conditional: bool = False

    def build(self) -> Mixture:
        return Mixture(self)


class Mixture(Network[MixtureConfig]):
    """The velocity that carries N(0, I) to a ring of Gaussians.

    It is the sum of the velocities of the individual Gaussians, each weighted by the posterior probability that a path
    at x at time t ends in it. As all have the same spread, that is the Gaussian field of the posterior mean.

    Attributes:
        means: centres of the Gaussians, float64, (components, 2).
    """

    means: Tensor

    def __init__(self, config: MixtureConfig | None = None) -> None:
        config = MixtureConfig() if config is None else config
        label = NamedCondition.label(config.components) if config.conditional else None
        super().__init__(config, (2,), one_condition(label))
        angles = [2 * math.pi / config.components * k for k in range(config.components)]
        means = [(config.radius * math.cos(angle), config.radius * math.sin(angle)) for angle in angles]
        self.register_buffer("means", torch.tensor(means, dtype=torch.float64))

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, 2) at times t (rows,), with class labels (rows,) if it is conditional.

        Raises:
            VelocityError: it does not take this condition.
        """
        t = t[:, None]
        squared = (x[:, None, :] - t[:, :, None] * self.means).square().sum(-1)
        # The part of each Gaussian's log-density that differs between them; softmax subtracts the largest first.
        weights = (-0.5 * squared / _variance(t, self.config.s)).softmax(dim=1)
        if condition is not None:
            [condition] = tensors_of(self.condition, condition, x)
            chosen = condition[:, None] == torch.arange(self.config.components, device=x.device)
            weights = torch.where(condition[:, None] == self.config.components, weights, chosen.to(x.dtype))
        mean = (weights[:, :, None] * self.means).sum(1)
        return mean + _slope(t, self.config.s) * (x - t * mean)


def _variance(t: Tensor, s: float) -> Tensor:
    """The variance of the marginal at t."""
    return (1 - t).square() + (t * s).square()


def _slope(t: Tensor, s: float) -> Tensor:
    """d/dt log sigma_t: the rate at which a path leaves the mean, relative to its distance from it."""
    return (t * s**2 - (1 - t)) / _variance(t, s)
