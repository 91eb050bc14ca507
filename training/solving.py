"""What evaluations, tuning and reflow begin with: a published model, solvers by their short text, and samples."""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import Checkpoint, load
from models.field import Field, solve
from models.shapes import free_axes
from solvers import Solution, SolverSpec, Status, compile  # noqa: A004  (compiles solvers)
from solvers.errors import SolverError
from solvers.tuned import TunedPlans
from training.errors import TrainingError, UsageError


def open_checkpoint(path: Path, purpose: str = "") -> Checkpoint:
    """Load a checkpoint.

    Args:
        path: the folder of a version.
        purpose: what it is loaded for, if that needs examples of its conditions, and one shape.

    Raises:
        TrainingError: it cannot be loaded, or only requests know its conditions or its shape.
    """
    try:
        checkpoint = load(path)
    except CheckpointError as error:
        raise TrainingError(str(error)) from None
    card = checkpoint.card
    command = f"python -m models measure {path}"
    if purpose and card.conditions and card.condition is None:
        names = ", ".join(card.conditions)
        raise TrainingError(
            f"{path}: takes conditions by name ({names}), and there are no examples of them to {purpose}; measure "
            f"stock solvers with your own: {command} --condition FILE.npz"
        )
    if purpose and (axes := free_axes(card.event_shape)):
        shape = " ".join(f"--shape {axis}=N" for axis in axes)
        raise TrainingError(
            f"{path}: has free axes ({', '.join(axes)}), and there is no one shape to {purpose}; measure stock solvers "
            f"at one: {command} {shape}"
        )
    return checkpoint


def parse_solver(text: str, tuned: TunedPlans | None = None) -> SolverSpec:
    """Parse a solver, such as `rk4-20`, `dopri5@1e-5` or, if tuned for the checkpoint, `tuned-6`.

    Raises:
        UsageError: the text names no solver, or one that is not available.
    """
    try:
        spec = SolverSpec.parse(text)
        compile(spec, torch.float32, tuned)
    except SolverError as error:
        raise UsageError(f"solver {text!r}: {error}") from None
    return spec


def sampled(
    name: str, field: Field, x0: Tensor, spec: SolverSpec, plans: TunedPlans | None = None
) -> tuple[Solution, NDArray[np.bool_]]:
    """Solve from the noise x0 (samples, *event); return which samples reached t = 1, too.

    Raises:
        TrainingError: none did; the message starts with `name`.
    """
    solution = solve(field, x0, spec, progress=sys.stderr.isatty(), plans=plans)
    reached = np.array([status == Status.SUCCESS for status in solution.status])
    if not reached.any():
        raise TrainingError(f"{name}: none of {len(x0)} samples reached t = 1; the network is not usable")
    return solution, reached
