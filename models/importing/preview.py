"""The preview of an imported checkpoint: a few samples, their mean and spread, and a sketch in characters."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models.checkpoint.loading import Checkpoint, load
from models.field import Field, solve
from models.noise import noise
from solvers import SolverSpec, Status

_SAMPLES = {True: 1000, False: 16}  # True for points in the plane
_CHEAP = "heun2-10"
_FAR = 50.0  # states of sound models stay well below

_SHADES = np.array(list(" .:-=+*#%@"))
_WIDTH, _HEIGHT = 60, 24
_ACROSS = 4

Array = NDArray[np.floating]


def preview(path: Path) -> list[str]:
    """Draw samples of a checkpoint with its authors' solver, or a cheap one, and describe them line by line.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
    """
    checkpoint = load(path)
    card = checkpoint.card
    count = _SAMPLES[card.data_shape == (2,)]
    data, states, ended = _draw(checkpoint, count)
    lines = [
        f"{count} samples of {card.name} {card.version}, seed 0, {_solver(checkpoint)}, shape {list(data.shape)}",
        f"mean {float(data.mean()):.4g}, spread {float(data.std()):.4g}, "
        f"from {float(data.min()):.4g} to {float(data.max()):.4g}",
        sketch(data.numpy()),
    ]
    if ended or not states.isfinite().all() or float(states.abs().max()) > _FAR:
        lines.append(
            "warning: samples diverge; the declared convention (--noise-at, --time-scale, --sign) may be wrong, "
            "or the weights are not those of this architecture"
        )
    return lines


def _solver(checkpoint: Checkpoint) -> str:
    """Return the text of the solver: the declared one, that of the field, or one of few evaluations."""
    card = checkpoint.card
    return card.authors_solver(card.typical) or card.field.solver or _CHEAP


def _draw(checkpoint: Checkpoint, count: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Decoded samples, their states, and whether any path failed."""
    card = checkpoint.card
    start = noise(0, 0, count, card.event_of(card.typical), checkpoint.dtype, centred=card.centred)
    field, spec = Field(checkpoint.velocity, checkpoint.examples(count)), SolverSpec.parse(_solver(checkpoint))
    solution = solve(field, start, spec, plans=checkpoint.plans)
    with torch.no_grad():
        data = checkpoint.decoder.decode(solution.x)
    return data, solution.x, any(status is not Status.SUCCESS for status in solution.status)


def sketch(samples: Array) -> str:
    """Draw samples (n, *data_shape): (h, w) and (1 or 3, h, w) as pictures, (2,) as a density, others as numbers."""
    shape = samples.shape[1:]
    finite = samples[np.isfinite(samples).reshape(len(samples), -1).all(1)]
    if not len(finite):
        return "(no finite sample)"
    if len(shape) == 3 and shape[0] in (1, 3):
        return _sheet(finite.mean(axis=1))
    if len(shape) == 2 and min(shape) > 1:
        return _sheet(finite)
    if shape == (2,):
        return _density(finite)
    rows = [" ".join(f"{number:8.3f}" for number in sample.reshape(-1)[:8]) for sample in finite[:8]]
    return "\n".join(rows)


def _sheet(images: Array) -> str:
    """Up to four pictures side by side; a character is about twice as high as wide, so every second row is left out."""
    chosen = images[:_ACROSS, :: 2 if images.shape[1] > 10 else 1, :]
    low, high = np.quantile(chosen, [0.01, 0.99])
    levels = np.clip((chosen - low) / max(high - low, 1e-12), 0, 1)
    shades = _SHADES[(levels * (len(_SHADES) - 1)).round().astype(int)]
    return "\n".join("  ".join("".join(image[row]) for image in shades).rstrip() for row in range(shades.shape[1]))


def _density(points: Array) -> str:
    counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=(_HEIGHT, _WIDTH))
    levels = np.sqrt(counts[::-1] / max(counts.max(), 1.0))
    shades = _SHADES[np.ceil(levels * (len(_SHADES) - 1)).astype(int)]
    return "\n".join("".join(row).rstrip() for row in shades)
