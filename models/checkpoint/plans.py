"""The tuned plans of a checkpoint, `plans.json`: solvers learned for its weights, as rows of numbers.

If the file is missing or cannot be used, the checkpoint is served with stock solvers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, JsonValue, model_validator

from models.checkpoint.bound import Bound, BoundFileError, Size
from models.frozen import Sparse
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.tuned import TUNED, TunedPlan, TunedPlans

PLANS_FILE = "plans.json"

MAX_STEPS = 64
"""The most steps of a learned plan; a lane keeps one velocity for each, and its starting state."""

Number = Annotated[float, Field(allow_inf_nan=False)]


class StoredPlan(Sparse):
    """One tuned solver, as stored.

    Attributes:
        solver: its text: `tuned-6`, or a stock method on its tuned grid, `ab4-9/tuned`.
        times: (N + 1) times of its steps.
        weights: N rows of a learned plan, row n with the weights of velocities 0 to n; None for a tuned grid.
        x0_weights: (N) weights of the starting state in a learned plan; None for zeros.
        error: p95 of the endpoint error on held-out noise, at the upper end of its interval, as a share of the spread.
        start_error: the same before tuning.
        tuning: how it was tuned: samples, seed, iterations, guidance, version of the tuner.
        libraries: versions of the libraries that tuned it.
    """

    unwritten = ("weights", "x0_weights")

    solver: str = Field(min_length=1, max_length=200)
    times: Annotated[tuple[Number, ...], Field(min_length=2, max_length=1025)]
    weights: Annotated[tuple[tuple[Number, ...], ...], Field(max_length=MAX_STEPS)] | None = None
    x0_weights: Annotated[tuple[Number, ...], Field(max_length=MAX_STEPS)] | None = None
    error: Size
    start_error: Size
    tuning: dict[str, JsonValue] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_a_plan(self) -> Self:
        try:
            spec = SolverSpec.parse(self.solver)
        except SolverError as error:
            raise ValueError(f"solver {self.solver!r}: {error}") from None
        learned = spec.solver == TUNED
        if not learned and spec.grid != TUNED:
            raise ValueError(f"solver {self.solver!r} is not a tuned solver")
        if learned != (self.weights is not None):
            raise ValueError(f"{self.solver}: weights are " + ("missing" if learned else "only for learned plans"))
        if spec.steps != len(self.times) - 1:
            raise ValueError(f"{self.solver}: times are for {len(self.times) - 1} steps")
        self.plan()
        return self

    def plan(self) -> TunedPlan:
        """Return it in the form that `solvers` takes."""
        weights = None
        if self.weights is not None:
            steps = len(self.times) - 1
            if [len(row) for row in self.weights] != list(range(1, steps + 1)):
                raise ValueError(f"{self.solver}: {steps} steps need rows of 1 to {steps} weights")
            weights = np.zeros((steps, steps))
            for n, row in enumerate(self.weights):
                weights[n, : n + 1] = row
        x0_weights = None if self.x0_weights is None else np.array(self.x0_weights, dtype=np.float64)
        try:
            return TunedPlan(np.array(self.times, dtype=np.float64), weights, x0_weights)
        except ValueError as error:
            raise ValueError(f"{self.solver}: {error}") from None


class Plans(Bound):
    """The content of `plans.json`.

    Attributes:
        format: version of this format.
        plans: one for each solver.
    """

    file_name = PLANS_FILE
    remedy = "tune the model again: python -m training tune CHECKPOINT"

    format: Literal[1] = 1
    plans: Annotated[tuple[StoredPlan, ...], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        texts = [plan.solver for plan in self.plans]
        if twice := next((text for text in texts if texts.count(text) > 1), None):
            raise ValueError(f"{twice} is listed twice")
        return self

    def tuned(self) -> TunedPlans:
        """Return the plans in the form that `solvers` takes."""
        plans: dict[int, TunedPlan] = {}
        grids: dict[str, TunedPlan] = {}
        for stored in self.plans:
            if stored.weights is None:
                grids[stored.solver.removesuffix(f"/{TUNED}")] = stored.plan()
            else:
                plans[len(stored.times) - 1] = stored.plan()
        return TunedPlans(plans, grids)


def tuned_plans(folder: Path, weights_sha256: str) -> tuple[TunedPlans | None, str]:
    """Return the plans of a checkpoint in the form that `solvers` takes, and why existing ones cannot be used."""
    try:
        plans = Plans.read(folder, weights_sha256)
    except BoundFileError as error:
        return None, str(error)
    return (None if plans is None else plans.tuned()), ""
