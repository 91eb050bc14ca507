"""Stochastic samplers: Euler-Maruyama and stochastic Heun for paths with noise of their own, as weights of plans.

On the straight path x_t = (1 - t) x0 + t x1 with x0 standard normal and independent of x1, the velocity is
v(x, t) = E[x1 - x0 | x_t = x], and x = (1 - t) E[x0 | x] + t E[x1 | x], so E[x0 | x] = x - t v. Given x1, x_t is normal
with mean t x1 and variance (1 - t)^2; the score of the marginal p_t is therefore

    s(x, t) = -E[x0 | x] / (1 - t) = (t v - x) / (1 - t).

The density of dx = f dt + sqrt(w) dW changes by -div(f p) + w/2 div(grad p). As grad p = p s, that of

    dx = [v + w/2 s] dt + sqrt(w) dW

changes by -div(v p), as that of the ODE does: for any w(t) >= 0 both have the same marginals (Song et al. 2021, eq. 13;
Ma et al. 2024, SiT, arXiv:2401.08740, eq. 8). With w = r (1 - t) the drift is

    f(x, t) = (1 + r t / 2) v(x, t) - (r / 2) x,

which is finite up to t = 1 if r is. A step of Euler-Maruyama, of weak order 1, is x + h f(x, t) + sqrt(h w) z. One of
stochastic Heun, with g^2 = h (w(t) + w(t + h)) / 2, is

    y = x + h f(x, t) + g z,    x + h/2 [f(x, t) + f(y, t + h)] + g z,

of weak order 2, as w does not depend on x (Kloeden & Platen 1992, section 15.1). Both are sums of x, velocities and z
with weights that the grid determines, so they are rows of a plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from solvers.draws import normals
from solvers.errors import SolverError
from solvers.grids import NUMBER, number_text

Numbers = NDArray[np.float64]

EDGE = 0.05
"""r of `flow_grpo` is bounded before t = EDGE, that of `constant` from 1 - EDGE on: it would be infinite at 0 or 1."""

SCHEDULES = {
    "linear": lambda t: np.ones_like(t),
    "flow_grpo": lambda t: 1 / np.maximum(t, EDGE),
    "constant": lambda t: 1 / np.maximum(1 - t, EDGE),
}
"""r(t) / scale^2 with w = r (1 - t). `linear`: w = scale^2 (1 - t). `flow_grpo` (Liu et al. 2025, arXiv:2505.05470):
scale^2 (1 - t) / t. `constant`: scale^2, and falling to 0 within the last `EDGE`."""

_MOST = 100.0
_NUMBER = re.compile(NUMBER)


@dataclass(frozen=True)
class Diffusion:
    """The noise of a stochastic path.

    Attributes:
        scale: the factor of sqrt(w), 0 to 100; with 0 the steps are those of the ODE solver, to the bit.
        schedule: one of `SCHEDULES`.
        temperature: a factor of the noise alone, 0 to 100: below 1, the marginals are no longer those of the ODE.

    Raises:
        SolverError: for other values.
    """

    scale: float = 1.0
    schedule: str = "linear"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            words = ", ".join(SCHEDULES)
            raise SolverError("diffusion", f"diffusion: unknown schedule {self.schedule!r}; use one of {words}")
        for name in ("scale", "temperature"):
            value = getattr(self, name)
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not (number and 0 <= value <= _MOST):
                raise SolverError("diffusion", f"diffusion: {name} must be from 0 to {_MOST:g}, got {value!r}")
            object.__setattr__(self, name, float(value))

    @classmethod
    def of(cls, value: object) -> Diffusion:
        """Return the diffusion that an object of its fields, or its text (`flow_grpo(0.7)`), stands for.

        Raises:
            SolverError: it is neither, or a value is not allowed.
        """
        if isinstance(value, Diffusion):
            return value
        if isinstance(value, str):
            schedule, bracket, inside = value.strip().lower().partition("(")
            numbers = [part.strip() for part in inside.removesuffix(")").split(",")] if bracket else []
            if bracket and not (inside.endswith(")") and len(numbers) <= 2 and all(map(_NUMBER.fullmatch, numbers))):
                raise SolverError(
                    "diffusion", f"diffusion {value!r}: write linear, linear(SCALE) or linear(SCALE,TEMPERATURE)"
                )
            return cls(schedule=schedule, **dict(zip(("scale", "temperature"), map(float, numbers), strict=False)))
        names = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping) or not value.keys() <= set(names):
            raise SolverError("diffusion", f"diffusion must be an object with {', '.join(names)}, got {value!r}")
        return cls(**value)

    def __str__(self) -> str:
        """Return its text: the schedule, with scale and temperature in parentheses unless they are 1."""
        numbers = [number_text(self.scale), number_text(self.temperature)]
        shown = numbers if self.temperature != 1 else numbers[:1] if self.scale != 1 else []
        return self.schedule + (f"({','.join(shown)})" if shown else "")


def weights(times: Numbers, stages: int, diffusion: Diffusion) -> tuple[Numbers, Numbers, Numbers]:
    """Return the weights of Euler-Maruyama (1 stage) or stochastic Heun (2 stages) on the times (N + 1,) of a grid.

    Returns:
        (N s, s) twice, for velocities in the query and in the advance, in units of h, for the s calls of a step; and
        (N s, 4), for the state and z in the query (beyond the state itself), and in the advance.
    """
    h, r = np.diff(times), diffusion.scale**2 * SCHEDULES[diffusion.schedule](times)
    w, c = r * (1 - times), 1 + r * times / 2
    count = stages * len(h)
    a, b, mix = np.zeros((count, stages)), np.zeros((count, stages)), np.zeros((count, 4))
    decay = h * r[:-1] / 2
    if stages == 1:
        b[:, 0] = c[:-1]
        mix[:, 2], mix[:, 3] = -decay, diffusion.temperature * np.sqrt(h * w[:-1])
        return a, b, mix
    g, pull = diffusion.temperature * np.sqrt(h * (w[:-1] + w[1:]) / 2), h * r[1:] / 4  # pull: of y in the corrector
    a[1::2, 0] = c[:-1]
    mix[1::2, 0], mix[1::2, 1] = -decay, g
    b[1::2, 0], b[1::2, 1] = c[:-1] / 2 - pull * c[:-1], c[1:] / 2
    mix[1::2, 2], mix[1::2, 3] = -decay / 2 - pull * (1 - decay), g - pull * g
    return a, b, mix


def transition_log_prob(
    times: Numbers, diffusion: Diffusion, seed: int, first_index: int, reached: Numbers, width: int
) -> Numbers:
    """Return the log-densities of the transitions that samples of Euler-Maruyama made.

    A step goes from x to x + h f(x, t) + gamma z, which is normal with variance gamma^2 in each of its D numbers. So
    the log-density of where it went is -D/2 log(2 pi gamma^2) - |z|^2 / 2. A step of stochastic Heun is no normal
    distribution, as its second velocity depends on z.

    Args:
        times: (N + 1,) the grid.
        diffusion: the noise; neither its scale nor its temperature is 0.
        seed: the seed.
        first_index: index of the first sample in the seed's stream.
        reached: (n,) the times that the samples reached, each a point of the grid.
        width: D.

    Returns:
        (n, N) float64 in nats; NaN for steps that a sample did not make.
    """
    gamma = weights(times, 1, diffusion)[2][:, 3]
    constant = -width * (math.log(2 * math.pi) / 2 + np.log(gamma))
    values = np.full((len(reached), len(gamma)), np.nan)
    z = np.empty((len(gamma), width))
    for n, steps in enumerate(np.searchsorted(times, reached)):
        normals(seed, first_index + n, z[:steps])
        values[n, :steps] = constant[:steps] - np.square(z[:steps]).sum(axis=1) / 2
    return values
