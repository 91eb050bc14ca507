"""Operations: what an arena computes.

Jobs of one operation of one model version share network calls; each operation has an arena of its own.
The arena for samples is made when a model is loaded, the others when they are first asked for.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.derived import DerivedField, JacobianField, LogDensityField


Sizes = tuple[tuple[str, int], ...]
"""The sizes of a model's free axes, by name; jobs of equal sizes share network calls."""


class Operation(StrEnum):
    """What the lanes of a job follow.

    `sample`: x, by the velocity. The others' states are flat: `log_prob_*`: [x, log p], with the divergence exact or
    estimated; `jacobian`: a row of the Jacobian at a given place, in one Euler step from zero (see `solvers.derived`).
    """

    SAMPLE = "sample"
    LOG_PROB_EXACT = "log_prob_exact"
    LOG_PROB_HUTCHINSON = "log_prob_hutchinson"
    JACOBIAN = "jacobian"


def derived_field(operation: Operation, event_shape: tuple[int, ...]) -> DerivedField | None:
    """The field that the lanes of an operation follow; None where it is the velocity itself."""
    if operation is Operation.SAMPLE:
        return None
    if operation is Operation.JACOBIAN:
        return JacobianField(event_shape)
    return LogDensityField(event_shape, probes=0 if operation is Operation.LOG_PROB_EXACT else 1)
