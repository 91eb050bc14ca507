"""Error control: step-size controllers and the automatic first step, in float64 for one lane at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from solvers.compiled import compiled

MAX_STEP_SLACK = 1 + 1e-6
"""The last step may exceed max_step by this factor: times are rounded, and so is a max_step given as float32."""

SAFETY = 0.9
SMALLEST_FACTOR, LARGEST_FACTOR = 0.2, 10.0
MAX_NON_FINITE = 5
"""How many times in a row a step with a non-finite stage is retried with a smaller h."""


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
"""Controllers by name, each a function of the order q of the error estimate."""


@compiled
def factor(error: float, alpha: float, beta: float, before: float, after_rejection: bool) -> float:
    """Return the factor by which the step changes after an attempt.

    Args:
        error: the scaled error; a step is accepted at 1 or less. It is infinite for a non-finite stage.
        alpha, beta: the controller's exponents.
        before: the error of the last accepted step, 1 at the start.
        after_rejection: whether the previous attempt was rejected.

    Returns:
        A factor in [0.2, 10]; at most 1 right after a rejection and below 1 for a rejected attempt.
    """
    raw = SAFETY * error**-alpha
    if error > 1:
        return min(max(raw, SMALLEST_FACTOR), 1.0)
    raw *= max(before, 1e-4) ** beta
    return min(max(raw, SMALLEST_FACTOR), 1.0 if after_rejection else LARGEST_FACTOR)


@compiled
def first_guess(d0: float, d1: float, span: float) -> float:
    """Return the trial step of the automatic first step (Hairer I, II.4, algorithm of p. 169, steps a to b).

    Args:
        d0, d1: scaled norms of the state and of the velocity.
        span: length of the integration.

    Returns:
        h0, clamped to the span.
    """
    guess = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    return min(guess, span)


@compiled
def first_step(h0: float, d1: float, d2: float, q: float, span: float) -> float:
    """Return the automatic first step (Hairer I, II.4, algorithm of p. 169, steps d to f), exponent 1 / (q + 1).

    Args:
        h0: the trial step.
        d1, d2: scaled norms of the velocity and of its change over the trial step, the latter divided by h0.
        q: order of the error estimate.
        span: length of the integration.
    """
    steepest = max(d1, d2)
    h1 = max(1e-6, h0 * 1e-3) if steepest <= 1e-15 else (0.01 / steepest) ** (1 / (q + 1))
    return min(min(100 * h0, h1), span)
