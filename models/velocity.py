"""The velocity field: its protocol, its two kinds, its error, and the forms it can be computed in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Condition = Tensor | Mapping[str, Tensor]
"""The condition of a network call: a tensor with one row for each state, or several such tensors by name."""


class VelocityError(ValueError):
    """A velocity field was given, or returned, something invalid."""


class FieldKind(StrEnum):
    """What a field returns, the times that it takes, and the solvers that fit it.

    `velocity`: v(x, t) of the flow dx/dt = v, at times (rows,).
    `average_velocity`: u(x, t, s); it leads from the state at t to that at s: x_s = x_t + (s - t) u(x_t, t, s), at
    times (rows, 2), the start and the end of a step. At s = t that is v. It was trained for steps from noise to data.
    """

    VELOCITY = "velocity"
    AVERAGE = "average_velocity"

    @property
    def takes_ends(self) -> bool:
        """Whether it takes the ends of steps beside their times."""
        return self is FieldKind.AVERAGE

    @property
    def no_path(self) -> str:
        """Why its steps follow no path, so that there is none to measure, to differentiate or to learn; else empty."""
        if self is FieldKind.VELOCITY:
            return ""
        return "is a field of average velocity (`field` of its card), whose steps follow no ODE"

    @property
    def solver(self) -> str | None:
        """The solver that it is sampled with if nobody says; None if that is a choice, as all solvers fit."""
        return "euler-1" if self is FieldKind.AVERAGE else None

    def check_solver(self, method: str) -> str:
        """Return why a method does not fit it; empty if it does."""
        if self is FieldKind.VELOCITY or method == "euler":
            return ""
        return (
            f"{method} does not fit a field of average velocity: each step is one network call that leads to its end, "
            "so there are no stages and no local error. Use 'euler' with 1 step (the default), 2 or 4, on any grid"
        )

    def times(self, t: Tensor) -> Tensor:
        """Return times t (rows,) as it takes them, to try a network with; steps end at data."""
        return torch.stack((t, torch.ones_like(t)), dim=1) if self.takes_ends else t


class VelocityField(Protocol):
    """A field `v(x, t, condition)` with noise at t = 0 and data at t = 1; see `FieldKind`."""

    def __call__(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t; returns (rows, *event) in the dtype of x.

        The condition is a `Condition` of the kind that the field takes (see `models.conditions`), or None.
        """
        ...


def kind_of(velocity: object) -> FieldKind:
    """Return the kind of a field."""
    return getattr(velocity, "field", FieldKind.VELOCITY)


def forms(velocity: VelocityField) -> Iterator[VelocityField]:
    """Return the ways of computing a field as it is now, in order of preference; they round differently.

    They are those of its method `forms`, which it has if a row's bits depend on the other rows in a call of some of its
    kernels; otherwise there is one, the field itself.
    """
    own = getattr(velocity, "forms", None)
    return iter((velocity,)) if own is None else own()


def rows_of(velocity: object, device: torch.device | str = "cpu") -> tuple[int, int | None]:
    """Return the fewest and the most rows that a field takes in one call on a device; None for no bound."""
    while isinstance(velocity, Wrapper):
        velocity = velocity.network
    least, most = getattr(velocity, "rows", (1, None))
    on_cpu = getattr(velocity, "cpu_rows", None)
    if on_cpu is None or torch.device(device).type != "cpu":
        return least, most
    return least, on_cpu if most is None else min(on_cpu, most)


class Wrapper(nn.Module, ABC):
    """A field made of another one, which it calls with other arguments; subclasses say how in `ask`.

    Attributes:
        network: the other field.
        field: as of that field.
    """

    def __init__(self, network: nn.Module | VelocityField) -> None:
        super().__init__()
        self.network = network
        self.field = kind_of(network)

    @abstractmethod
    def ask(self, network: VelocityField, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t with the other field, or with one of its forms."""

    def forward(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t, as a `VelocityField`."""
        return self.ask(self.network, x, t, condition)

    def forms(self) -> Iterator[VelocityField]:
        """Yield the forms of the other field, each wrapped."""
        for form in forms(self.network):
            yield partial(self.ask, form)


def check_float32(x: Tensor, t: Tensor, event_shape: Sequence[int | str]) -> None:
    """Check states x (rows, *event_shape) and times t (rows,) of a form that is computed in float32.

    Raises:
        VelocityError: they have another shape or dtype.
    """
    rows = len(x)
    if x.dtype != torch.float32 or x.shape[1:] != tuple(event_shape) or t.dtype != x.dtype or t.shape != (rows,):
        raise VelocityError(
            f"states are {x.dtype} of shape {tuple(x.shape)} with times {t.dtype} of shape {tuple(t.shape)}; this "
            f"field takes torch.float32 of shape (rows, {', '.join(map(str, event_shape))}) and (rows,)"
        )


def refuse_condition(condition: Condition | None) -> None:
    """Raise a VelocityError if an unconditional field is given a condition."""
    if condition is not None:
        raise VelocityError("condition was given, but this model is unconditional: leave condition out")
