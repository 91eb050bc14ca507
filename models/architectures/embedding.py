"""Embeddings of times, of step lengths, and of the only condition of a network, a label or a vector."""

from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from models.conditions import NamedCondition, one_condition, tensors_of
from models.velocity import FieldKind


class TimeEmbedding(nn.Module):
    """Sines and cosines of `t` at geometric frequencies from 1 to `max_frequency`.

    The frequencies are a stored buffer, so that a checkpoint gives the same bits with another libm.
    """

    frequencies: Tensor

    def __init__(self, width: int, max_frequency: float) -> None:
        super().__init__()
        half = width // 2
        values = [max_frequency ** (k / (half - 1)) for k in range(half)]
        self.register_buffer("frequencies", torch.tensor(values))

    def forward(self, t: Tensor) -> Tensor:
        """Embed the times `t` (rows,) as (rows, width)."""
        return sinusoids(t, self.frequencies)


def sinusoids(t: Tensor, frequencies: Tensor) -> Tensor:
    """Sines and cosines (rows, 2 F) of the times t (rows,) at frequencies (F,)."""
    # A row fills whole vector registers (32 numbers by default), so no number is computed in a loop's tail.
    angles = t[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def steps_of(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return starts (rows,) and lengths (rows,) of steps from times: (rows, 2), start and end, or (rows,), length 0."""
    return (t, torch.zeros_like(t)) if t.ndim == 1 else (t[:, 0], t[:, 1] - t[:, 0])


def span_linear(field: FieldKind, time_width: int, width: int) -> nn.Linear | None:
    """Make the layer for embedded step lengths, None for a field that takes no ends of steps.

    It starts at zero, so that the network starts as a plain velocity.
    """
    if not field.takes_ends:
        return None
    linear = nn.Linear(time_width, width)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _label_or_vector(entry: NamedCondition) -> NamedCondition:
    label = entry.classes is not None and not entry.shape and entry.null in (None, entry.classes)
    fixed = len(entry.sizes) == len(entry.shape) == 1
    if label or (entry.classes is None and fixed and entry.is_standardised and entry.null in (None, "nan")):
        return entry
    raise ValueError(
        "condition must be one label, with the null `classes` or none, or a vector that the network takes in the dtype "
        "of the states, with the null nan or none"
    )


EmbeddedCondition = Annotated[NamedCondition, AfterValidator(_label_or_vector)]
"""The condition in the config of a network that embeds it: a label or a vector, see `NamedCondition`."""


class ConditionEmbedding(nn.Module):
    """Embeds conditions as vectors of the network's width; the null has its own learned vector.

    Attributes:
        config: the condition that is embedded.
    """

    def __init__(self, config: NamedCondition, width: int) -> None:
        super().__init__()
        self.config, self.takes = config, one_condition(config)
        if config.classes is not None:
            self.table = nn.Embedding(config.classes + config.nullable, width)
        else:
            self.linear = nn.Linear(config.sizes[0], width)
            if config.nullable:
                self.null = nn.Parameter(torch.zeros(width))

    def forward(self, condition: Tensor | None, x: Tensor) -> Tensor:
        """Embed one condition for each row of the states x; None is the null for all.

        Returns:
            (rows, width)

        Raises:
            ConditionError: a wrong shape or type, or None for a model without a trained null.
        """
        [condition] = tensors_of(self.takes, condition, x)
        if self.config.classes is not None:
            return self.table(condition)
        if not self.config.nullable:
            return self.linear(condition)
        missing = condition.isnan().any(1, keepdim=True)
        return torch.where(missing, self.null, self.linear(condition.masked_fill(missing, 0.0)))
