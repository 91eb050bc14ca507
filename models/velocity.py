"""What a velocity field is: the protocol, and the wrapper that makes each row independent of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from models.mixing import RowByRow
from models.noise import noise
from models.row_padding import BUCKETS, UNPADDED, RowCaller

if TYPE_CHECKING:
    from models.conditions import LabelCondition, VectorCondition


class VelocityError(ValueError):
    """A velocity field was asked for, or answered with, something it must not."""


class VelocityField(Protocol):
    """A field `v(x, t, condition)` of the flow dx/dt = v, with noise at t = 0 and data at t = 1."""

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,); returns (rows, *event) in the dtype of x.

        The condition has one row a state (see `models.conditions`); None is no condition.
        """
        ...


@runtime_checkable
class HasForms(Protocol):
    """A field that can be computed in other ways."""

    def forms(self) -> Iterator[VelocityField]:
        """The field as it is now, in ways of computing it, the cheapest first, which has the field's own bits.

        The later ones round otherwise; they are for kernels that give rows of the earlier ones other bits in other
        company.
        """
        ...


def forms(velocity: VelocityField) -> Iterator[VelocityField]:
    """The ways of computing a field (see `HasForms`): itself where it knows no others."""
    return velocity.forms() if isinstance(velocity, HasForms) else iter((velocity,))


def refuse_condition(condition: Tensor | None) -> None:
    """Raise a VelocityError if an unconditional field is given a condition."""
    if condition is not None:
        raise VelocityError("condition was given, but this model is unconditional: leave condition out")


class RowStable:
    """A velocity field whose every row has the same bits, whatever rows are evaluated with it.

    Calls are padded with copies of a live row, as measured when this is made (see `models.row_padding`; well below a
    second for the paper's networks). The measurement holds for the number of torch threads it was made
    with: make this with as many as will be used, in the thread that will call it.

    Attributes:
        velocity: what is called: the first form of the field that makes rows independent, or the first.
        event_shape: shape of one state.
        dtype: type of states and velocities.
        condition: what the field is conditioned on, or None.
    """

    def __init__(
        self,
        velocity: VelocityField,
        event_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        max_rows: int = 1024,
        condition: LabelCondition | VectorCondition | None = None,
        probe: Tensor | None = None,
        unpadded: bool = False,
    ) -> None:
        """Measure the field.

        Args:
            velocity: the field.
            event_shape: shape of one state.
            dtype: float32 or float64.
            device: where the field lives.
            max_rows: the most rows of one call of the field, rounded up to a multiple of 128; a larger call
                is made in pieces. A smaller number may be used if only that makes rows independent.
            condition: what the field is conditioned on, as its card says; None where it takes no condition.
            probe: states to measure with, as many rows as those of a call and no two alike; noise where left out.
            unpadded: whether to try without padding, for a field whose rows are made not to depend on their number.

        Raises:
            VelocityError: the field answers with a wrong shape or type.
        """
        self.event_shape = tuple(event_shape)
        self.dtype = dtype
        self.condition = condition
        limit = max(1, -(-max_rows // BUCKETS[-1])) * BUCKETS[-1]
        x = (noise(0, 0, limit, self.event_shape, dtype) if probe is None else probe).to(device)
        t = torch.linspace(0.0, 1.0, limit, dtype=dtype, device=device)
        given = () if condition is None else (condition.examples(limit, dtype, device),)
        candidates = UNPADDED if unpadded else BUCKETS
        apart, asked = isinstance(velocity, RowByRow), (x, t, *given)
        for count, form in enumerate(forms(velocity)):
            call = RowCaller(
                partial(_checked, form), asked, limit, apart, candidates
            )  # no cycle: it is freed when let go
            if call.deterministic or not count:
                self.velocity, self._call = form, call
            if call.deterministic:
                break

    @property
    def deterministic(self) -> bool:
        """Whether rows are independent bit for bit; False if no padding was found that makes them so."""
        return self._call.deterministic

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row buckets that agree, ascending; the smallest is used."""
        return self._call.buckets

    @property
    def max_rows(self) -> int:
        """The most rows of one call of the field; larger calls are made in pieces."""
        return self._call.limit

    @property
    def live_rows(self) -> int:
        """Rows asked for so far."""
        return self._call.live_rows

    @property
    def padded_rows(self) -> int:
        """Rows added as padding so far."""
        return self._call.padded_rows

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,); returns (rows, *event).

        Args:
            x: states.
            t: times, in the dtype of x.
            condition: one row a state; None is no condition, which is the null of a conditional field.

        Raises:
            VelocityError: the arguments or the answer have a wrong shape or type.
        """
        if x.shape[1:] != self.event_shape or x.dtype != self.dtype or t.shape != x.shape[:1]:
            raise VelocityError(
                f"states are {x.dtype} of shape {tuple(x.shape)} with times of shape {tuple(t.shape)}; this field "
                f"takes {self.dtype} of shape (rows, {', '.join(map(str, self.event_shape))}) and (rows,)"
            )
        if not len(x):
            return torch.empty_like(x)
        if self.condition is None:
            refuse_condition(condition)
            return self._call(x, t)
        if condition is None:
            condition = self.condition.nulls(len(x), x.dtype, x.device)
        self.condition.check(condition, len(x), x.dtype)
        return self._call(x, t, condition)


def _checked(velocity: VelocityField, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
    v = velocity(x, t) if condition is None else velocity(x, t, condition)
    if v.shape != x.shape or v.dtype != x.dtype:
        raise VelocityError(
            f"the velocity field answered with {v.dtype} of shape {tuple(v.shape)}; "
            f"it must answer with {x.dtype} of shape {tuple(x.shape)}, as it was asked"
        )
    return v
