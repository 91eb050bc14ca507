"""Detection of a network's convention: its velocities at the two ends of its time show which end is noise.

On the straight path x_t = (1 - t) x0 + t x1 the velocity is E[x1 - x0 | x_t]. Where x is pure noise, that is E[x1] - x,
a line of slope -1 over the noise, whatever the data. At the other end noise is not data, and the velocities of a
trained network lie on no such line. So the end with the line is the noise, and the slope gives the sign. A network that
counts time in thousands cannot distinguish 0 from 1.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.conventions import Adapted, TimeCard
from models.noise import noise

Network = Callable[[Tensor, Tensor], Tensor]

_NUMBERS = 1 << 14  # elements of all states together, in 16 to 256 rows
_LINE = 0.35  # largest distance from the line at the noise end, relative to the spread of x
_CLEARLY = 2.0  # smallest ratio of the distance at the other end to that at the noise end
_SAME = 0.1  # velocities that differ by less between 0 and 1 mean time in thousands


@torch.no_grad()
def detect(network: Network, event_shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TimeCard | None, str]:
    """Detect the convention of a network by evaluating it at the ends of its time.

    A network that predicts noise shows a line of slope 1 at its noise end, as does one that returns noise minus data;
    its outputs for noise cannot distinguish the two.

    Args:
        network: states (rows, *event) and times (rows,) in its own convention -> velocities.
        event_shape: shape of one state.
        dtype: dtype of the states.

    Returns:
        The convention, None if it cannot be detected; and in words, with the slopes of the velocity over noise at the
        network's own times 0 and `scale`, and the rms distances from a line of slope 1 or -1 there, relative to the
        spread of x.
    """
    rows = min(256, max(16, _NUMBERS // math.prod(event_shape)))
    x = noise(0, 0, rows, event_shape, dtype)

    def ask(time: float) -> Tensor:
        return network(x, torch.full((rows,), time, dtype=dtype)).reshape(rows, -1).double()

    first, far = ask(0.0), ask(1.0)
    scale = 1.0
    if float((first - far).square().mean()) < _SAME**2 * float(first.square().mean()):
        scale, far = 1000.0, ask(1000.0)
    flat = x.reshape(rows, -1).double()
    (slope0, miss0), (slope1, miss1) = _line(flat, first), _line(flat, far)
    ends = f"slope {slope0:+.2f} at 0 and {slope1:+.2f} at {scale:g}, off the line by {miss0:.2f} and {miss1:.2f}"
    if not (min(miss0, miss1) <= _LINE and max(miss0, miss1) >= _CLEARLY * min(miss0, miss1)):
        return None, f"cannot be detected ({ends}); declare it with --noise-at, --time-scale and --sign"
    if miss0 < miss1:
        time = TimeCard(scale=scale, sign=1 if slope0 < 0 else -1)
    else:
        time = TimeCard(noise_at=1, data_at=0, scale=scale, sign=1 if slope1 > 0 else -1)
    return time, f"noise at {time.noise_at}, time scale {time.scale:g}, sign {time.sign:+d} ({ends})"


@torch.no_grad()
def start_slope(network: Network, event_shape: tuple[int, ...], dtype: torch.dtype, time: TimeCard) -> float:
    """Return the slope of a network's outputs over unit noise at the start of sampling, by its own convention."""
    rows = min(256, max(16, _NUMBERS // math.prod(event_shape)))
    start = noise(0, 0, rows, event_shape, dtype)
    answers: list[Tensor] = []

    def field(x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        answers.append(network(x, t))
        return answers[-1]

    Adapted(field, time)(start, torch.zeros(rows, dtype=dtype))
    return _line(start.reshape(rows, -1).double(), answers[0].reshape(rows, -1).double())[0]


def _line(x: Tensor, v: Tensor) -> tuple[float, float]:
    """Return the slope of v over x, all coordinates pooled, and the root mean square distance from slope 1 or -1."""
    x, v = x - x.mean(0), v - v.mean(0)
    slope = float((x * v).sum() / x.square().sum())
    nearest = 1.0 if slope > 0 else -1.0
    return slope, float(((v - nearest * x).square().sum() / x.square().sum()).sqrt())
