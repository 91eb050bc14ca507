"""Paths and schedules: the noise that a network was trained with at each of its own times.

A network of a diffusion or flow model is trained on states X = a x1 + b e of data x1 and noise e ~ N(0, I). Of its
path, only (a, b) and the times at which they occur matter. With sigma = b / a, the noise per unit of data:

    linear   a = 1 - u,  b = u           Lipman et al. 2023, eq. 22, with noise at u = 1
    vp       a^2 + b^2 = 1               Ho et al. 2020, eq. 4; Song et al. 2021, eq. 11 ("variance preserving")
    edm      a = 1,      b = sigma       Karras et al. 2022, eq. 1; "variance exploding" of Song et al., eq. 9

A schedule maps sigma to the level u that the network counts in, and back; u grows with the noise.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.frozen import Frozen

_MAX_LOG_SIGMA = 50.0

PathName = Literal["linear", "vp", "edm"]


class Straight(Frozen):
    """The straight path: u = b, from 0 to 1.

    Like every schedule, which a card knows by its `kind`, it has the noisiest level u, the levels of noises (rows,) in
    float64, which may be infinite, and the noise at a level.
    """

    noisiest: ClassVar[float] = 1.0

    kind: Literal["straight"] = "straight"

    def level(self, sigma: Tensor) -> Tensor:
        """Return the levels of noises."""
        return 1.0 / (1.0 + 1.0 / sigma)

    def sigma(self, u: float) -> float:
        """Return the noise at a level."""
        return u / (1.0 - u) if u < 1 else math.inf


class Beta(Frozen):
    """A noise rate beta that grows linearly over u in [0, 1], with integral log(1 + sigma^2) (Song et al., eq. 33).

    Attributes:
        beta_min, beta_max: the rate at the two ends.
    """

    noisiest: ClassVar[float] = 1.0

    kind: Literal["beta"] = "beta"
    beta_min: float = Field(default=0.1, gt=0.0, le=100.0, allow_inf_nan=False)
    beta_max: float = Field(default=20.0, gt=0.0, le=100.0, allow_inf_nan=False)

    def level(self, sigma: Tensor) -> Tensor:
        grown, more = torch.log1p(sigma.square()), self.beta_max - self.beta_min
        return 2 * grown / (self.beta_min + (self.beta_min**2 + 2 * more * grown).sqrt())

    def sigma(self, u: float) -> float:
        return math.sqrt(math.expm1(self.beta_min * u + (self.beta_max - self.beta_min) * u * u / 2))

    def turn(self, sigma: Tensor) -> Tensor:
        """Return d phi / du at noises (rows,), with (a, b) = (cos, sin)(phi)."""
        return (self.beta_min + (self.beta_max - self.beta_min) * self.level(sigma)) / (2 * sigma)


class Cosine(Frozen):
    """a = cos((u + offset) / (1 + offset) pi / 2), divided by its value at u = 0 (Nichol & Dhariwal 2021, eq. 17).

    Attributes:
        offset: 0.008 in that paper; with 0, (a, b) = (cos, sin)(pi u / 2) (Salimans & Ho 2022).
    """

    noisiest: ClassVar[float] = 1.0

    kind: Literal["cosine"] = "cosine"
    offset: float = Field(default=0.008, ge=0.0, le=0.5, allow_inf_nan=False)

    @property
    def _first(self) -> float:
        return math.cos(self.offset / (1 + self.offset) * math.pi / 2)

    def level(self, sigma: Tensor) -> Tensor:
        # acos of a first / sqrt(1 + sigma^2), without its loss of digits near 1
        tangent = torch.sqrt(sigma.square() + (1 - self._first**2)) / self._first
        angle = torch.where(sigma.isinf(), math.pi / 2, torch.atan(tangent))
        return (angle / (math.pi / 2) * (1 + self.offset) - self.offset).clamp(0.0, 1.0)

    def sigma(self, u: float) -> float:
        a = math.cos((u + self.offset) / (1 + self.offset) * math.pi / 2) / self._first
        return math.sqrt(max(0.0, 1 / a**2 - 1)) if u < 1 else math.inf

    def turn(self, sigma: Tensor) -> Tensor:
        # da/du by the formula of a is -sin(phi) dphi/du
        a, b = (1 + sigma.square()).rsqrt(), (1 + sigma.pow(-2)).rsqrt()
        return (self._first**-2 - a.square()).sqrt() / b * (math.pi / 2) / (1 + self.offset)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _log_sigmas(growth: str, first: float, last: float, steps: int) -> Tensor:
    """Return log sigma of each step of a chain (steps,), float64.

    It is kept here as a chain with a tensor among its values could not be compared.
    """
    if growth == "squaredcos_cap_v2":
        u = torch.arange(steps + 1, dtype=torch.float64, device="cpu") / steps
        signal = torch.cos((u + 0.008) / 1.008 * math.pi / 2).square()
        betas = (1 - signal[1:] / signal[:-1]).clamp(max=0.999)
    else:
        power = 0.5 if growth == "scaled_linear" else 1.0
        betas = torch.linspace(first**power, last**power, steps, dtype=torch.float64, device="cpu") ** (1 / power)
    return torch.log(torch.expm1(-torch.log1p(-betas).cumsum(0))) / 2


class Steps(Frozen):
    """The noise of a chain of steps, counted from 0: a^2 is the product of (1 - beta) up to a step (Ho et al., eq. 4).

    Between two steps log sigma is interpolated.

    Attributes:
        betas: how beta grows from the first step to the last: `linear`; `scaled_linear` if its square root does so;
            `squaredcos_cap_v2`, as diffusers calls the steps of `Cosine` with beta at most 0.999.
        beta_first, beta_last: beta at the two ends, unless it follows from the cosine.
        steps: the number of steps.
    """

    kind: Literal["steps"] = "steps"
    betas: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    beta_first: float = Field(default=1e-4, gt=0.0, lt=1.0)
    beta_last: float = Field(default=0.02, gt=0.0, lt=1.0)
    steps: int = Field(default=1000, ge=2, le=1 << 16)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if not self._log_sigma[-1] < _MAX_LOG_SIGMA:
            raise ValueError("the last step has no data left; use smaller betas or fewer steps")
        return self

    @property
    def noisiest(self) -> float:
        return self.steps - 1.0

    @property
    def _log_sigma(self) -> Tensor:
        return _log_sigmas(self.betas, self.beta_first, self.beta_last, self.steps)

    def level(self, sigma: Tensor) -> Tensor:
        table, targets = self._log_sigma.to(sigma.device), sigma.log()
        after = torch.searchsorted(table, targets).clamp(1, self.steps - 1)
        low, high = table[after - 1], table[after]
        return (after - 1 + (targets - low) / (high - low)).clamp(0.0, self.noisiest)

    def sigma(self, u: float) -> float:
        below = min(int(u), self.steps - 2)
        low, high = self._log_sigma[below].item(), self._log_sigma[below + 1].item()
        return math.exp(low + (u - below) * (high - low))


class Sigma(Frozen):
    """Noise added to data that keeps its scale: u = sigma.

    Attributes:
        time: the time that the network receives: `sigma`, or `quarter_log`, the c_noise = log(sigma) / 4 of Karras et
            al., table 1.
    """

    noisiest: ClassVar[float] = 80.0  # sigma_max of Karras et al., table 1

    kind: Literal["sigma"] = "sigma"
    time: Literal["sigma", "quarter_log"] = "sigma"

    def level(self, sigma: Tensor) -> Tensor:
        return sigma

    def sigma(self, u: float) -> float:
        return u


Schedule = Annotated[Straight | Beta | Cosine | Steps | Sigma, Field(discriminator="kind")]

SCHEDULES: dict[str, tuple[type[Any], ...]] = {"linear": (Straight,), "vp": (Beta, Cosine, Steps), "edm": (Sigma,)}
"""The schedules that a path may have, its default first."""


def gain(path: PathName, data: Tensor, noise: Tensor) -> Tensor:
    """Return the factor that scales states with given amounts of data and noise, (rows,) each, onto a path."""
    if path == "linear":
        return 1 / (data + noise)
    return 1 / torch.hypot(data, noise) if path == "vp" else 1 / data
