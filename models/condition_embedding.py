"""Embeds the only condition of a network, a label or a vector, as a vector of the network's width."""

from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from models.conditions import ONE
from models.named_conditions import NamedCondition


def _label_or_vector(entry: NamedCondition) -> NamedCondition:
    label = entry.classes is not None and not entry.shape and entry.null in (None, entry.classes)
    fixed = len(entry.sizes) == len(entry.shape) == 1
    if label or (entry.classes is None and fixed and entry.moved and entry.null in (None, "nan")):
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
        self.config = config
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
        if condition is None:
            null = self.config.null_of(ONE, x.dtype).to(x.device)
            condition = null.expand(len(x), *null.shape[1:])
        self.config.check(ONE, condition, x.shape[0], x.dtype)  # `len` would fix the number of rows of an export
        if self.config.classes is not None:
            return self.table(condition)
        if not self.config.nullable:
            return self.linear(condition)
        missing = condition.isnan().any(1, keepdim=True)
        return torch.where(missing, self.null, self.linear(condition.masked_fill(missing, 0.0)))
