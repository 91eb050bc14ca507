"""Conventions of imported networks: their prediction, their path, and how they count time.

Pathline has noise at t = 0 and data at t = 1, and needs dz/dt on straight paths. A network with another convention is
adapted when it is loaded, as its card says (see `TimeCard`).

A velocity of the straight path needs only a sign and a time scale. Any other network is served as the velocity of the
straight path from its own start to data. Let it be trained on states X = a x1 + b e (see `models.paths`), and let its
authors start at (a, b) = (a0, b0) from S times unit noise, in place of a0 x1 + b0 e. Then

    z_t = (1 - t) (a0 x1 + b0 e) / S + t x1 = A x1 + B e,    A = t + (1 - t) a0 / S,    B = (1 - t) b0 / S,

starts from unit noise, ends at data, and at every t is a multiple of the state X with the same b / a = B / A. Time and
scale of a path do not change where its solutions end (Karras et al. 2022, section 2), so samples are those of the
network's own probability-flow ODE (Song et al. 2021, eq. 13), from its authors' start. For a path with a = 1 the map
from (X, sigma) to (z, t) takes lines to lines: up to rounding, an Euler step in t is the authors' Euler step in sigma
(DDIM; Song, Meng & Ermon 2021). Methods of higher order differ from their form in sigma by as much as their error.

With the estimates D of the data and E of the noise that the network's output f implies,

    eps   E = f,  D = (X - b E) / a         Ho et al. 2020, eq. 11
    x0    D = f,  E = (X - a D) / b         Karras et al. 2022, eq. 3
    v     f = (a E - b D) / sqrt(a^2 + b^2) Salimans & Ho 2022, section 4 and appendix D
    velocity  f = a' D + b' E               Lipman et al. 2023, eq. 13

the velocity is dz/dt = (1 - a0 / S) D - (b0 / S) E.

Some authors end at a state that still has noise, (a1, b1) at their `stop`, and take it for data. Then A = t a1 +
(1 - t) a0 / S, B likewise, and dz/dt = (a1 - a0 / S) D + (b1 - b0 / S) E; above, (a1, b1) = (1, 0).

At the ends of the path, an epsilon network says nothing about the data where a = 0, so it must start where a > 0; an x0
network says nothing about the noise where b = 0. Below the least noise that a network knows (`end`), it is evaluated at
that noise, and only E is taken from its output: (1 - a0 / S) (z - B E) / A - (b0 / S) E stays finite up to t = 1.

Times arrive rounded, usually to float32. Where a time stands for a whole step of a network that counts steps (within
four ulps, as in `solvers.grids`), the network gets exactly that number, and may take it as an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.frozen import Sparse
from models.paths import SCHEDULES, PathName, Schedule, Sigma, Steps, gain
from models.velocity import VelocityField, Wrapper

Predicts = Literal["velocity", "eps", "x0", "v"]

_ULPS = 4
_ROUNDING = 1e-9  # of the conversion itself, in steps


class TimeCard(Sparse):
    """The convention that a network was trained with. Its own time runs from 0 to `scale` unless its schedule differs.

    Attributes:
        noise_at: the end of its time with pure noise: 0, or 1 for `scale`.
        data_at: the other end, with data.
        scale: where its time ends; 1000 for networks that count time steps. If the schedule counts in steps or in
            sigma, a factor of that.
        sign: 1 if it returns its prediction, -1 if it returns the negative. A velocity is the derivative of the state
            with respect to its own time divided by the scale.
        predicts: `velocity`, `eps` (the noise), `x0` (the data) or `v`.
        path: `linear`, `vp` or `edm`, see `models.paths`.
        schedule: the path's noise as a function of time; None for the path's usual one.
        start: own time of the first call; None for the noisiest of the schedule, or 0.999 of it if an epsilon network
            would get no information about the data there.
        end: the last own time that the network knows; None for data, or a little noise if the network needs some.
        stop: own time of the states that sampling returns, if they still have noise; None for data.
        start_scale: standard deviation of the states that sampling starts from; None for 1 on the path `vp` and b at
            the start on others.
    """

    unwritten = ("predicts", "path", "schedule", "start", "end", "stop", "start_scale")

    noise_at: Literal[0, 1] = 0
    data_at: Literal[0, 1] = 1
    scale: float = Field(default=1.0, gt=0.0, le=1e6, allow_inf_nan=False)
    sign: Literal[1, -1] = 1
    predicts: Predicts = "velocity"
    path: PathName = "linear"
    schedule: Schedule | None = None
    start: float | None = Field(default=None, allow_inf_nan=False)
    end: float | None = Field(default=None, allow_inf_nan=False)
    stop: float | None = Field(default=None, allow_inf_nan=False)
    start_scale: float | None = Field(default=None, gt=0.0, le=1e6, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.noise_at == self.data_at:
            raise ValueError(f"noise_at and data_at are both {self.noise_at}; one must be 0 and the other 1")
        if self.schedule is not None and not isinstance(self.schedule, SCHEDULES[self.path]):
            kinds = ", ".join(kind.model_fields["kind"].default for kind in SCHEDULES[self.path])
            raise ValueError(
                f"a schedule of kind {self.schedule.kind!r} does not fit path {self.path!r}; use one of {kinds}"
            )
        if self.straight:
            return self
        if isinstance(self.shape, Sigma) and self.noise_at == 0:
            raise ValueError("noise_at is 0, but sigma grows with the noise; noise_at must be 1")
        if isinstance(self.shape, Steps) and self.predicts == "velocity":
            raise ValueError("predicts a velocity, but a chain of steps has no derivative; use eps, x0 or v")
        first, last = self.sigmas
        if not 0 <= last < first:
            raise ValueError(
                f"sampling would run from noise {first:g} to {last:g}; start must be noisier than end, and both within "
                f"the schedule ({self.own(self.shape.noisiest):g} is its noisiest time)"
            )
        if self.predicts == "eps" and math.isinf(first):
            raise ValueError(
                "an epsilon network says nothing about the data where there is only noise; start a little later, such "
                f"as at {self.own(0.999 * self.shape.noisiest):g}"
            )
        if not 0 <= self._noise_at(self.stop_level) < first:
            raise ValueError(f"stop is {self.stop:g}; it must be less noisy than the start, and within the schedule")
        if last == 0 and (self.predicts == "x0" or (self.predicts == "velocity" and self.path == "vp")):
            raise ValueError(
                f"predicts {self.predicts}, which says nothing about the noise where there is none; end a little "
                f"earlier, such as at {self.own(0.001 * self.shape.noisiest):g}"
            )
        return self

    @property
    def straight(self) -> bool:
        """Whether it is a velocity of the straight path, so that only sign and scale of time differ."""
        levels = (self.start, self.end, self.stop)
        return self.predicts == "velocity" and self.path == "linear" and levels == (None, None, None)

    @property
    def shape(self) -> Any:
        """The schedule; the path's usual one if none is given."""
        return self.schedule if self.schedule is not None else SCHEDULES[self.path][0]()

    def own(self, u: Any) -> Any:
        """Return the network's own time at a level u, a number or a tensor."""
        if isinstance(self.shape, Sigma):
            return u * self.scale
        return (u if self.noise_at == 1 else self.shape.noisiest - u) * self.scale

    def level(self, own: float) -> float:
        """Return the level u at one of the network's own times."""
        u = own / self.scale
        return u if self.noise_at == 1 else self.shape.noisiest - u

    @property
    def levels(self) -> tuple[float, float]:
        """The levels u of the first call and of the least noise."""
        shape = self.shape
        first = shape.noisiest if self.start is None else self.level(self.start)
        if self.start is None and self.predicts == "eps" and math.isinf(shape.sigma(first)):
            first = 0.999
        if self.end is not None:
            return first, self.level(self.end)
        if isinstance(shape, Sigma):
            return first, 0.002
        needs = self.path == "vp" or self.predicts == "x0"
        return first, 0.001 if needs and not isinstance(shape, Steps) else 0.0

    @property
    def sigmas(self) -> tuple[float, float]:
        """The noise of the first call and the least noise; NaN for levels outside the schedule."""
        first, last = self.levels
        return self._noise_at(first), self._noise_at(last)

    @property
    def stop_level(self) -> float | None:
        """The level u of the states that sampling returns; None for data."""
        return None if self.stop is None else self.level(self.stop)

    def _noise_at(self, u: float | None) -> float:
        """The noise at a level, 0 for None; NaN outside the schedule."""
        noisiest = math.inf if isinstance(self.shape, Sigma) else self.shape.noisiest
        if u is None:
            return 0.0
        return self.shape.sigma(u) if 0 <= u <= noisiest else math.nan

    @property
    def first_scale(self) -> float:
        """S: the standard deviation of the states that sampling starts from, in the network's own scale."""
        return self.start_scale or (1.0 if self.path == "vp" else self._first[1])

    @property
    def first_state(self) -> tuple[float, float]:
        """(a0, b0) / S: the amounts of data and noise at t = 0."""
        a, b = self._first
        return a / self.first_scale, b / self.first_scale

    @property
    def _first(self) -> tuple[float, float]:
        """(a0, b0) on the network's own path."""
        return self._amounts(self.sigmas[0])

    @property
    def last_state(self) -> tuple[float, float]:
        """(a1, b1): the amounts of data and noise at t = 1."""
        return self._amounts(self._noise_at(self.stop_level))

    def _amounts(self, sigma: float) -> tuple[float, float]:
        """(a, b) at a noise on the network's own path."""
        if math.isinf(sigma):
            return 0.0, 1.0
        one = torch.ones((), dtype=torch.float64)
        a = float(gain(self.path, one, one * sigma))
        return a, sigma * a

    @property
    def step(self) -> float:
        """The distance of the steps that the network's own time counts; 0 if it counts none."""
        if isinstance(self.shape, Steps):
            return self.scale
        return 1.0 if self.scale > 1 and not isinstance(self.shape, Sigma) else 0.0

    def time_of(self, own: float) -> float:
        """Return the t in [0, 1] of one of the network's own times; 1 beyond its data end, and from `stop` on."""
        u = self.level(own)
        if u >= self.levels[0]:
            return 0.0
        if u < 0 or (self.stop_level is not None and u <= self.stop_level):
            return 1.0
        if self.straight:
            return 1.0 - u
        (a, b), (a1, b1), sigma = self.first_state, self.last_state, self.shape.sigma(u)
        return (b - sigma * a) / (b - b1 + sigma * (a1 - a))

    def begin(self, own: float | None) -> tuple[float, float]:
        """Return the t of a start at one of the network's own times, and the factor of unit noise there.

        There the authors start from S' times unit noise, with S' as `first_scale` at that time. The state X = S' e is
        z = (B / b) S' e, with B the amount of noise at t and b that on their own path.

        Args:
            own: the time of the first call; None for the card's.

        Raises:
            ValueError: it is noisier than the card's start, or not before the end.
        """
        if own is None:
            return 0.0, 1.0
        t, (first, _) = self.time_of(own), self.levels
        if self.level(own) > first or t >= 1.0:
            end = self.own(0.0 if self.stop_level is None else self.stop_level)
            raise ValueError(f"sampling starts at {self.own(first):g} or later, and before {end:g}")
        (_, b), (_, b_first) = self._amounts(self._noise_at(self.level(own))), self._first
        noise = t * self.last_state[1] + (1.0 - t) * self.first_state[1]
        size = self.first_scale if self.path == "vp" else self.first_scale * b / b_first
        return t, size * noise / b

    def grid(self, own: Sequence[float]) -> list[float]:
        """Return the t of steps at the network's own times, from the first call to data.

        The end may be left out, or written as 0 or any time beyond the data end: after the last call follows the step
        to data, or to `stop`.
        """
        points = [self.time_of(at) for at in own]
        if points[-1] != 1.0:
            points[-1:] = [1.0] if self.level(own[-1]) <= 0 else [points[-1], 1.0]
        return points


class Adapted(Wrapper):
    """A network with another convention, adapted to Pathline's.

    Let s in [0, 1] be its own time divided by the scale; then noise at s = 1 means s = 1 - t and dx/dt = -dx/ds. A
    scale changes the times that the network receives but not its velocity, as is usual in training. Other predictions
    and paths are converted as described at the top of this module.
    """

    def __init__(self, network: nn.Module | VelocityField, time: TimeCard) -> None:
        super().__init__(network)
        self.time, self._shape, self._straight = time, time.shape, time.straight
        (self._a, self._b), (self._a1, self._b1) = time.first_state, time.last_state
        self._noisiest, self._least = time.levels[0], time.sigmas[1]

    def ask(self, network: VelocityField, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t in [0, 1] from noise to data."""
        time = self.time
        if not self._straight:
            own, scales = self._numbers(t)
            p, q, g = (number.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1)) for number in scales)
            return p * x + q * network(g * x, own.to(t.dtype), condition)
        if time.scale == 1.0:
            own = t if time.noise_at == 0 else 1.0 - t
        else:
            own = _counted(lambda at: time.own(1.0 - at), t, time.step).to(t.dtype)
        v = network(x, own, condition)
        return v if time.sign == (1 if time.noise_at == 0 else -1) else -v

    def _numbers(self, t: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the network's own times for t (rows,), and p, q, g of dz/dt = p z + q f(g z, own time), in float64."""
        time, own = self.time, _counted(self._own, t, self.time.step)
        data, noise = self._amounts(t.double())
        clamped = torch.maximum(noise, self._least * data)  # the least noise that the network knows
        g = gain(time.path, data, clamped)
        a, b, sigma = g * data, g * clamped, clamped / data
        more, less = self._a1 - self._a, self._b1 - self._b
        turn = self._a * self._b1 - self._a1 * self._b  # less data - more noise, at every t
        (d_x, d_f), (e_x, e_f) = self._estimates(a, b, sigma)
        by_noise = ((more + turn * e_x * g) / data, turn * e_f / data)
        if time.predicts == "eps":
            return own, (*by_noise, g)
        if time.predicts == "x0":
            by_data = (less / noise, -time.sign * turn / noise)
        else:
            by_data = tuple((more * d + less * e) for d, e in ((d_x * g, e_x * g), (d_f, e_f)))
        below = noise < clamped
        p, q = (torch.where(below, low, high) for low, high in zip(by_noise, by_data, strict=True))
        return own, (p, q, g)

    def _amounts(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(A, B): the amounts of data and noise at t."""
        left = 1.0 - t
        return t * self._a1 + left * self._a, t * self._b1 + left * self._b

    def _own(self, t: Tensor) -> Tensor:
        """The network's own times for t."""
        data, noise = self._amounts(t)
        sigma = torch.maximum(noise, self._least * data) / data
        u = self._shape.level(sigma).clamp(max=self._noisiest)
        quarter_log = isinstance(self._shape, Sigma) and self._shape.time == "quarter_log"
        return u.log() / 4 if quarter_log else self.time.own(u)

    def _estimates(self, a: Tensor, b: Tensor, sigma: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the estimates of data and noise, each as the factors of the state X and of the network's output f."""
        time, sign = self.time, float(self.time.sign)
        one = torch.full_like(a, sign)
        if time.predicts == "eps":
            return (1 / a, -sign * b / a), (torch.zeros_like(a), one)
        if time.predicts == "x0":
            return (torch.zeros_like(a), one), (1 / b, -sign * a / b)
        if time.predicts == "velocity":
            one = one if time.noise_at == 1 else -one  # now the derivative by u
            if time.path == "linear":
                return (torch.ones_like(a), -one * b), (torch.ones_like(a), one * a)
            if time.path == "edm":
                return (torch.ones_like(a), -one * b), (torch.zeros_like(a), one)
            one = one / self._shape.turn(sigma)  # now the derivative by the angle of (a, b), which is v
        size = a.square() + b.square()
        return (a / size, -one * b / size.sqrt()), (b / size, one * a / size.sqrt())


def _counted(own: Callable[[Tensor], Tensor], t: Tensor, step: float) -> Tensor:
    """Return own(t) in float64, monotone for t in [0, 1], and exact where t stands for the time of a whole step."""
    near, t = _ULPS * torch.finfo(t.dtype).eps, t.double()
    if not step:
        return own(t)
    early, at, late = own(torch.stack((t - near, t, t + near)).clamp(0.0, 1.0))
    whole = (at / step).round() * step
    exact = ((whole - early) * (whole - late) <= 0) | ((whole - at).abs() <= _ROUNDING * step)
    return torch.where(exact, whole, at)


def adapt(network: nn.Module, time: TimeCard) -> nn.Module:
    """Adapt a network to Pathline's convention; return the network itself if it already has that convention."""
    return network if time == TimeCard() else Adapted(network, time)
