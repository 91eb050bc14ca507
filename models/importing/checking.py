"""Looking at a checkpoint: a few samples, their mean and spread, and a picture."""

from pathlib import Path

import torch

from models.checkpoint.loading import Checkpoint, load
from models.importing.pictures import picture
from models.noise import noise
from solvers import Status, integrate

_SAMPLES = {True: 1000, False: 16}  # by whether they are points in the plane
_STEPS = 25
_FAR = 50.0  # states of models of this kind stay well below


def look(path: Path) -> list[str]:
    """Draw samples of a checkpoint with RK4 and 25 steps, and say in lines what they are like.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
    """
    checkpoint = load(path)
    card = checkpoint.card
    count = _SAMPLES[card.data_shape == (2,)]
    data, states, ended = _draw(checkpoint, count)
    numbers = data.numpy()
    lines = [
        f"{count} samples of {card.name} {card.version}, seed 0, rk4 with {_STEPS} steps, shape {list(data.shape)}",
        f"mean {float(data.mean()):.4g}, spread {float(data.std()):.4g}, "
        f"from {float(data.min()):.4g} to {float(data.max()):.4g}",
        picture(numbers),
    ]
    if ended or not states.isfinite().all() or float(states.abs().max()) > _FAR:
        lines.append(
            "warning: samples run away; the declared convention (--noise-at, --time-scale, --sign) may be wrong, "
            "or the weights are not those of this architecture"
        )
    return lines


def _draw(checkpoint: Checkpoint, count: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    card = checkpoint.card
    given = None if card.condition is None else card.condition.examples(count, checkpoint.dtype)
    start = noise(0, 0, count, card.event_shape, checkpoint.dtype)

    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return checkpoint.velocity(x, t) if given is None else checkpoint.velocity(x, t, given[: len(x)])

    solution = integrate(velocity, start, solver="rk4", steps=_STEPS)
    with torch.no_grad():
        data = checkpoint.decoder.decode(solution.x)
    return data, solution.x, any(status is not Status.SUCCESS for status in solution.status)
