"""Conventions of other people's networks: which end of time is noise, the scale of time, the sign of the velocity.

Pathline has noise at t = 0 and data at t = 1, and asks for dx/dt. A network with another convention is adapted when it
is loaded, as its card says (see `TimeCard`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from models.velocity import VelocityField, forms, rows_of


class TimeCard(BaseModel):
    """The convention that a network was trained with. Its own time runs from 0 to `scale`.

    Attributes:
        noise_at: the end of its time with pure noise: 0, or 1 for `scale`.
        data_at: the end with data, which is the other one.
        scale: where its time ends; 1000 for networks that count time steps.
        sign: 1 if it returns the derivative of the state by its own time, -1 if it returns the negative.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    noise_at: Literal[0, 1] = 0
    data_at: Literal[0, 1] = 1
    scale: float = Field(default=1.0, gt=0.0, le=1e6, allow_inf_nan=False)
    sign: Literal[1, -1] = 1

    @model_validator(mode="after")
    def _ends_differ(self) -> Self:
        if self.noise_at == self.data_at:
            raise ValueError(f"noise_at and data_at are both {self.noise_at}; one must be 0 and the other 1")
        return self

    @property
    def usual(self) -> bool:
        """Whether this is Pathline's own convention."""
        return self == TimeCard()


class Adapted(nn.Module):
    """A network with another convention, adapted to Pathline's.

    With s in [0, 1] its own time divided by the scale, noise at s = 1 means s = 1 - t and dx/dt = -dx/ds. A scale
    changes the times that the network is given and not its velocity, as people train it that way.
    """

    def __init__(self, network: nn.Module | VelocityField, time: TimeCard) -> None:
        super().__init__()
        self.network = network
        self.time = time
        self.rows = rows_of(network)

    def forward(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,) in [0, 1] from noise to data."""
        return _adapted(self.network, self.time, x, t, condition)

    def forms(self) -> Iterator[VelocityField]:
        """The forms of the network, each adapted."""
        for form in forms(self.network):
            yield partial(_adapted, form, self.time)


def _adapted(network: VelocityField, time: TimeCard, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
    own = t if time.noise_at == 0 else 1.0 - t
    v = network(x, own if time.scale == 1.0 else own * time.scale, condition)
    return v if time.sign == (1 if time.noise_at == 0 else -1) else -v


def adapt(network: nn.Module, time: TimeCard) -> nn.Module:
    """The network adapted to Pathline's convention; the network itself if it has that convention already."""
    return network if time.usual else Adapted(network, time)
