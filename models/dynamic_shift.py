"""The shift of a default grid that grows with the size of a state, as in diffusers' dynamic shifting.

Esser et al. 2024 (Stable Diffusion 3, section 5.3.2): more tokens need more noise for the same loss of information, so
a larger state takes more of its steps near the noise. diffusers' pipelines let mu grow linearly with the tokens,

    mu = base_shift + (max_shift - base_shift) (tokens - base_tokens) / (max_tokens - base_tokens),

and shift the times of their scheduler by exp(mu), which is the grid `shift(exp(mu))`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.shapes import Axis, free_axes
from solvers.grids import GRIDS, number_text


class DynamicShift(BaseModel):
    """How the shift of a grid follows from the free axes of a state. The defaults are those of diffusers.

    Attributes:
        base_shift, max_shift: mu for `base_tokens` and for `max_tokens`; extrapolated beyond both.
        base_tokens, max_tokens: numbers of tokens, called `image_seq_len` in diffusers.
        patch: size of a token along each free axis; 2 for a network that cuts pictures into patches of 2 x 2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_shift: float = Field(default=0.5, ge=-10.0, le=10.0, allow_inf_nan=False)
    max_shift: float = Field(default=1.15, ge=-10.0, le=10.0, allow_inf_nan=False)
    base_tokens: int = Field(default=256, ge=1, le=1 << 30)
    max_tokens: int = Field(default=4096, ge=1, le=1 << 30)
    patch: int = Field(default=1, ge=1, le=1 << 16)

    @model_validator(mode="after")
    def _is_a_line(self) -> Self:
        if self.base_tokens >= self.max_tokens:
            raise ValueError(f"base_tokens is {self.base_tokens}; it must be below max_tokens, {self.max_tokens}")
        return self

    def grid(self, event_shape: Sequence[int | str], sizes: Mapping[str, int]) -> str:
        """The grid for a state with these sizes of its free axes, as text."""
        return f"shift({number_text(math.exp(self._mu(self._tokens(event_shape, sizes))))})"

    def _tokens(self, event_shape: Sequence[int | str], sizes: Mapping[str, int]) -> int:
        return math.prod(sizes[axis] // self.patch for axis in event_shape if isinstance(axis, str))

    def _mu(self, tokens: int) -> float:
        slope = (self.max_shift - self.base_shift) / (self.max_tokens - self.base_tokens)
        return self.base_shift + slope * (tokens - self.base_tokens)

    def check(self, event_shape: Sequence[int | str], axes: Mapping[str, Axis]) -> None:
        """Refuse states without a free axis, and sizes with a shift outside the allowed range.

        Raises:
            ValueError: with the reason.
        """
        free = free_axes(event_shape)
        if not free:
            raise ValueError(
                f"a dynamic shift needs a free axis; states of shape {list(event_shape)} have none, so give the "
                "solver a grid, such as shift(3)"
            )
        _, low, high = GRIDS["shift"].parameters["value"]
        for name, sizes in (
            ("smallest", {axis: axes[axis].smallest for axis in free}),
            ("largest", {axis: axes[axis].max for axis in free}),
        ):
            tokens = self._tokens(event_shape, sizes)
            if not tokens:
                raise ValueError(f"patch = {self.patch} is larger than the {name} state; make it smaller")
            mu = self._mu(tokens)
            if not math.log(low) <= mu <= math.log(high):
                raise ValueError(
                    f"the dynamic shift of the {name} state, {tokens} tokens, has mu = {mu:.3g}, outside "
                    f"{math.log(low):.3g} to {math.log(high):.3g}; limit the axes, or change the shifts"
                )
