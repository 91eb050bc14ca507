"""Other people's conventions: which end of time is noise, how time is counted, and which way the velocity points.

Pathline has noise at t = 0 and data at t = 1 and asks for dx/dt. A network that was trained otherwise is wrapped when
it is loaded; its card says how (see `TimeCard`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from models.velocity import VelocityField, forms


class TimeCard(BaseModel):
    """The convention a network was trained in. Its own time runs from 0 to `scale`.

    Attributes:
        noise_at: the end of its time, as a part of `scale`, where noise is pure.
        data_at: the end where data is; the other one.
        scale: what its time runs to; 1000 for networks that count time steps.
        sign: 1 if it answers the derivative of the state by its own time, -1 if it answers the negative.
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
    """A network in a convention of its own, asked and answered in Pathline's.

    With s in [0, 1] its own time divided by the scale, noise at s = 1 means s = 1 - t, so that
    dx/dt = -dx/ds; an answer by its own time (0 to scale) still counts as by s, as people train it.
    """

    def __init__(self, network: nn.Module | VelocityField, time: TimeCard) -> None:
        super().__init__()
        self.network = network
        self.time = time

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,) in [0, 1] from noise to data."""
        return _adapted(self.network, self.time, x, t, condition)

    def forms(self) -> Iterator[VelocityField]:
        """The network's ways of being computed, each adapted."""
        for form in forms(self.network):
            yield partial(_adapted, form, self.time)


def _adapted(network: VelocityField, time: TimeCard, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
    own = t if time.noise_at == 0 else 1.0 - t
    v = network(x, own if time.scale == 1.0 else own * time.scale, condition)
    return v if time.sign == (1 if time.noise_at == 0 else -1) else -v


def adapt(network: nn.Module, time: TimeCard) -> nn.Module:
    """The network as Pathline asks it; itself where it follows Pathline's convention already."""
    return network if time.usual else Adapted(network, time)
