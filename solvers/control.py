"""Error control on the host: step-size controllers and the automatic first step, one number a lane.

All arithmetic is float64 and elementwise, so a lane's step sizes never depend on which other lanes there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SAFETY = 0.9
SMALLEST_FACTOR, LARGEST_FACTOR = 0.2, 10.0
MOST_NON_FINITE = 5
"""How often in a row a step with a non-finite stage is tried again, smaller."""


@dataclass(frozen=True)
class Controller:
    """The next step is h times 0.9 err^-alpha err_before^beta, clipped.

    Attributes:
        alpha: exponent of the error of this step.
        beta: exponent of the error of the last accepted step; 0 for a controller without memory.
    """

    alpha: float
    beta: float = 0.0


CONTROLLERS: dict[str, Callable[[int], Controller]] = {
    # The paper's exponent, -1/6 for DOPRI5: more cautious than the classical one.
    "paper": lambda q: Controller(1 / (q + 2)),
    # Hairer I, II.4 eq. (4.13).
    "i": lambda q: Controller(1 / (q + 1)),
    # Gustafsson's PI controller with the constants of dopri5: Hairer & Wanner II, IV.2 eq. (2.43c).
    "pi": lambda q: Controller(1 / (q + 1) - 0.75 * 0.2 / (q + 1), 0.2 / (q + 1)),
}
"""Controllers by name, each from the order q of the error estimate."""


def factor(error: Array, alpha: Array, beta: Array, before: Array, after_rejection: NDArray[np.bool_]) -> Array:
    """By how much the step changes after an attempt.

    Args:
        error: (n,) scaled errors; a step is accepted at 1 or less. Infinite stands for a non-finite stage.
        alpha, beta: (n,) the controller's exponents.
        before: (n,) the error of the last accepted step, 1 at the start.
        after_rejection: (n,) whether the attempt before this one was rejected.

    Returns:
        (n,) factors in [0.2, 10]; at most 1 right after a rejection and below 1 for a rejected attempt.
    """
    with np.errstate(divide="ignore"):
        accepted = error <= 1
        memory = np.where(accepted, np.maximum(before, 1e-4) ** beta, 1.0)
        raw = SAFETY * error**-alpha * memory
    largest = np.where(after_rejection | ~accepted, 1.0, LARGEST_FACTOR)
    return np.clip(raw, SMALLEST_FACTOR, largest)


def first_guess(d0: Array, d1: Array, span: Array) -> Array:
    """The trial step of the automatic first step (Hairer I, II.4, algorithm of p. 169, steps a to b).

    Args:
        d0, d1: (n,) scaled norms of the state and of the velocity.
        span: (n,) length of the integration.

    Returns:
        (n,) h0, clamped to the span.
    """
    small = (d0 < 1e-5) | (d1 < 1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.where(small, 1e-6, 0.01 * d0 / d1)
    return np.minimum(guess, span)


def first_step(h0: Array, d1: Array, d2: Array, q: Array, span: Array) -> Array:
    """The automatic first step (Hairer I, II.4, algorithm of p. 169, steps d to f) with exponent 1 / (q + 1).

    Args:
        h0: (n,) the trial step.
        d1, d2: (n,) scaled norms of the velocity and of its change over the trial step, the latter divided by h0.
        q: (n,) order of the error estimate.
        span: (n,) length of the integration.
    """
    steepest = np.maximum(d1, d2)
    with np.errstate(divide="ignore"):
        h1 = np.where(steepest <= 1e-15, np.maximum(1e-6, h0 * 1e-3), (0.01 / steepest) ** (1 / (q + 1)))
    return np.minimum(np.minimum(100 * h0, h1), span)
