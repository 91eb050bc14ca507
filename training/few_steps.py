"""The price of a field of average velocity: the distance of its samples to data, by the number of steps.

An endpoint error says nothing of such a field: its steps follow no ODE of its own, so no number of them has a limit to
converge to. So its samples are compared with data, and with those of the model that it was trained on.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from solvers import SolverSpec
from training.dataset import DataSet
from training.evaluation import Quality, Velocity, evaluate

STEPS = (1, 2, 4)


@dataclass(frozen=True)
class FewSteps:
    """Sample quality by steps.

    Attributes:
        swd: sliced Wasserstein-1 distance to real data of samples by `euler`, for each number of steps, which is the
            NFE.
        swd_real: the same of real data: the noise floor.
        samples: how many samples were compared with as many real ones.
        parent: name of the model that the field was trained on, or "".
        parent_swd: distance of that model's samples from the same noise, by `parent_solver`; None without a parent.
        parent_nfe: velocity evaluations per sample that these took, mean.
        parent_solver: the solver, with its tolerance.
    """

    swd: dict[int, float]
    swd_real: float
    samples: int
    parent: str = ""
    parent_swd: float | None = None
    parent_nfe: float | None = None
    parent_solver: str = ""

    def lines(self) -> Iterator[str]:
        """The price in one line, or two, for people."""
        by_steps = "; ".join(f"{swd:.4f} at {steps} NFE" for steps, swd in self.swd.items())
        yield f"price: SWD {by_steps} (real to real {self.swd_real:.4f}); there is no ODE, so no endpoint error"
        if self.parent_swd is not None:
            cost = f"{self.parent_nfe:.1f} NFE ({self.parent_solver})"
            yield f"its parent {self.parent}: SWD {self.parent_swd:.4f} at {cost}"

    def record(self) -> dict[str, Any]:
        """Return the price JSON-ready."""
        return {"kind": "few_steps", **asdict(self), "swd": {str(steps): swd for steps, swd in self.swd.items()}}


def few_steps(network: Velocity, data: DataSet, seed: int, parent: str = "", theirs: Quality | None = None) -> FewSteps:
    """Measure a field of average velocity, on the CPU, beside what was measured of its parent with the same seed.

    Raises:
        TrainingError: no sample came to its end.
    """
    found = {steps: evaluate(network, data, seed, SolverSpec("euler", steps)) for steps in STEPS}
    first = found[STEPS[0]]
    price = FewSteps({steps: quality.swd for steps, quality in found.items()}, first.swd_real, first.samples)
    if theirs is None:
        return price
    return replace(price, parent=parent, parent_swd=theirs.swd, parent_nfe=theirs.nfe_mean, parent_solver=theirs.solver)
