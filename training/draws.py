"""Random numbers of a run, each a pure function of (seed, purpose, position).

There is no generator state to lose: a run that was killed at step k draws the numbers of step k again and gets the same
ones. This also lets several processes share one batch.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class DrawPurpose(IntEnum):
    """Purposes of random numbers; those of different purposes never coincide. Never renumber: seeds would change."""

    DATA = 0  # which training samples there are
    WEIGHTS = 1  # the network's initial weights
    ORDER = 2  # the order of the samples, a permutation for each epoch
    BATCH = 3  # the noise and the times of a step
    FRESH = 4  # data that training never saw
    EVALUATION = 5  # starting noise and projections of the evaluation
    DROPOUT = 6  # which samples of a step lose their condition
    VALIDATION = 7  # the noise and the times of the validation
    PAIRS = 8  # the noise of a reflow's pairs, and their labels
    STEPS = 9  # the ends of the steps that a student is trained on


def generator(seed: int, purpose: DrawPurpose, position: int = 0) -> np.random.Generator:
    """Return the Philox generator of (seed, purpose, position), all non-negative integers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, int(purpose), position])))


def seed32(seed: int, purpose: DrawPurpose, position: int = 0) -> int:
    """Return a seed in [0, 2^32) for a library that needs an integer (scikit-learn, torch)."""
    return int(np.random.SeedSequence([seed, int(purpose), position]).generate_state(1)[0])


def steps(
    seed: int, step: int, t: NDArray[np.float32], instants: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return starts and ends (rows,), in [0, 1), of the time steps that a student learns in training step `step`.

    One of the two is t (rows,), the other is drawn uniformly; a share `instants` of the time steps has length zero.
    """
    source = generator(seed, DrawPurpose.STEPS, step)
    other = source.random(len(t), dtype=np.float32)
    other = np.where(source.random(len(t)) < instants, t, other)
    return np.minimum(t, other), np.maximum(t, other)


def batch(
    seed: int, step: int, rows: int, event_shape: tuple[int, ...], logit_normal: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the draws of `step` (from 0): noise x0 (rows, *event_shape), standard normal; times t (rows,) in [0, 1).

    The times are uniform, or with `logit_normal` the logistic function of a standard normal number.
    """
    source = generator(seed, DrawPurpose.BATCH, step)
    if logit_normal:
        times = (1 / (1 + np.exp(-source.standard_normal(rows)))).astype(np.float32)
    else:
        times = source.random(rows, dtype=np.float32)
    return source.standard_normal((rows, *event_shape), dtype=np.float32), times
