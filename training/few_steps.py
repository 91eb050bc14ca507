"""Price of a field of average velocity: the distance of its samples to data, by the number of steps.

Endpoint errors do not apply to such a field: its steps follow no ODE, so they do not converge as their number grows.
Instead, its samples are compared with data, and with samples of the model that it was trained from.
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
        swd: sliced Wasserstein-1 distance of samples to real data, for each number of steps of `euler`, which is also
            the NFE.
        swd_real: the same between two sets of real data: the noise floor.
        samples: number of samples, compared with the same number of real ones.
        parent: name of the model that the field was trained from, or "".
        parent_swd: distance of that model's samples from the same noise, by `parent_solver`; None without a parent.
        parent_nfe: velocity evaluations per sample of the parent, mean.
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
        """Yield the price as one or two lines of text."""
        by_steps = "; ".join(f"{swd:.4f} at {steps} NFE" for steps, swd in self.swd.items())
        yield f"price: SWD {by_steps} (real to real {self.swd_real:.4f}); there is no ODE, so no endpoint error"
        if self.parent_swd is not None:
            cost = f"{self.parent_nfe:.1f} NFE ({self.parent_solver})"
            yield f"its parent {self.parent}: SWD {self.parent_swd:.4f} at {cost}"

    def record(self) -> dict[str, Any]:
        """Return the price JSON-ready."""
        return {"kind": "few_steps", **asdict(self), "swd": {str(steps): swd for steps, swd in self.swd.items()}}


def few_steps(network: Velocity, data: DataSet, seed: int, parent: str = "", theirs: Quality | None = None) -> FewSteps:
    """Measure a field of average velocity on the CPU, and add its parent's quality, measured with the same seed.

    Raises:
        TrainingError: no sample reached t = 1.
    """
    found = {steps: evaluate(network, data, seed, SolverSpec("euler", steps)) for steps in STEPS}
    first = found[STEPS[0]]
    price = FewSteps({steps: quality.swd for steps, quality in found.items()}, first.swd_real, first.samples)
    if theirs is None:
        return price
    return replace(price, parent=parent, parent_swd=theirs.swd, parent_nfe=theirs.nfe_mean, parent_solver=theirs.solver)
