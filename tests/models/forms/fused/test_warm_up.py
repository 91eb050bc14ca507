"""A fused network compiles nothing after its warm-up, so no request waits for the compiler."""

from tests.processes import forked

_CODE = """
import torch
from models.forms.fused import residual_mlp
from models.conditions import NamedCondition
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from solvers.lanes import Admission, Lanes
from solvers import resolve

residual_mlp.warm_up()
loops = (residual_mlp._evaluate, residual_mlp._run)
before = [len(loop.signatures) for loop in loops]
for condition in (None, NamedCondition.label(classes=3), NamedCondition.vector(width=2)):
    field = residual_mlp.FusedResidualMLP(ResidualMLP(ResidualMLPConfig(dim=2, hidden=24, condition=condition)))
    lanes = Lanes((2,))
    lanes.admit([Admission(resolve(solver="dopri5"), torch.randn(3, 2))])
    given = () if condition is None else (condition.examples(3, torch.float32),)
    lanes.run(field.runner(*given, rows=3), 5)
print(before, [len(loop.signatures) for loop in loops])
"""


def test_nothing_is_compiled_after_the_warm_up() -> None:
    assert forked(_CODE) == (0, "[1, 1] [1, 1]\n")
