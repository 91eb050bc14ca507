"""Classifier-free guidance: more of what the condition asks for than the model itself would give.

    v = v(x, t, null) + g (v(x, t, condition) - v(x, t, null))

Ho & Salimans, "Classifier-free diffusion guidance", 2022; for velocities: Zheng et al., "Guided flows for generative
modeling and decision making", 2023. g = 1 is the plain conditional model and g = 0 the unconditional one, so both cost
one network row; every other g costs two.
"""

import torch
from torch import Tensor

from models.conditions import ConditionError, LabelCondition, VectorCondition
from models.velocity import VelocityField


def network_rows(guidance: float | None) -> int:
    """The network rows of one evaluation with this guidance: 1 or 2. None is no guidance."""
    return 1 if guidance in (None, 0, 1) else 2


class Guided:
    """A conditional velocity with a guidance for each row.

    Both velocities of a guided row come from the same network call and are combined by elementwise operations, so over
    a `RowStable` field a row's bits depend on that row alone, as they do without guidance.

    Attributes:
        velocity: the conditional field.
        condition: what it is conditioned on.
    """

    def __init__(self, velocity: VelocityField, condition: LabelCondition | VectorCondition) -> None:
        self.velocity = velocity
        self.condition = condition

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None, guidance: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,).

        Args:
            x: states.
            t: times, in the dtype of x.
            condition: one row for each state; None is no condition.
            guidance: g of each row, finite, (rows,); None is 1 for all.

        Returns:
            The velocities, (rows, *event).

        Raises:
            ConditionError: guidance without a condition or of a wrong shape, or a model whose null was not trained.
        """
        if guidance is None:
            return self.velocity(x, t, condition)
        if condition is None:
            raise ConditionError("guidance was given without a condition; give a condition, or leave guidance out")
        if guidance.shape != t.shape[:1]:
            raise ConditionError(
                f"guidance has shape {tuple(guidance.shape)}; it needs one number a row, {tuple(t.shape[:1])}"
            )
        off = guidance == 0
        if bool(off.any()):
            condition = condition.clone()
            condition[off] = self.condition.nulls(int(off.sum()), x.dtype, x.device)
        both = ((guidance != 1) & ~off).nonzero().squeeze(1)
        if not len(both):
            return self.velocity(x, t, condition)
        nulls = self.condition.nulls(len(both), x.dtype, x.device)
        v = self.velocity(torch.cat((x, x[both])), torch.cat((t, t[both])), torch.cat((condition, nulls)))
        with_condition, without = v[: len(x)].clone(), v[len(x) :]
        g = guidance[both].to(x.dtype).reshape(-1, *([1] * (x.ndim - 1)))
        with_condition[both] = without + g * (with_condition[both] - without)
        return with_condition
