"""Networks of average velocity of any order and sign: MeanFlow's (x, t, r), a shortcut model's (x, t, d)."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.checkpoint.loading import load
from models.importing.command import _FIELDS
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.weights import import_program
from models.velocity import FieldKind
from solvers import resolve
from solvers.integrate import integrate_indexed


class Mean(nn.Module):
    """u(x, t, r) as its authors call it; `names` is the order of its arguments."""

    def __init__(self, names: str, sign: float = 1.0) -> None:
        super().__init__()
        self.names, self.sign = names, sign
        self.layer = nn.Linear(5, 3)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        given = dict(zip(self.names, (a, b, c), strict=True))
        end = given["r"] if "r" in given else given["d"]
        return self.sign * self.layer(torch.cat((given["x"], given["t"][:, None], end[:, None]), 1)).tanh()


def take(network: Mean, root: Path, inputs: str | None, noise_at: int, sign: int, kind: str = "average") -> Path:
    rows, values = torch.export.Dim("rows", min=1, max=8192), {"x": torch.randn(4, 3)}
    arguments = tuple(values.get(name, torch.rand(4)) for name in network.names)
    program = torch.export.export(network.eval(), arguments, dynamic_shapes=tuple({0: rows} for _ in arguments))
    torch.export.save(program, root / "net.pt2")
    names = None if inputs is None else inputs.split(",")
    declared = Declared(noise_at, 1.0, sign)
    return import_program(
        root / "net.pt2", root / "models", "net", inputs=names, declared=declared, kind=_FIELDS[kind]
    ).path


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("names", "noise_at", "sign"), [("xtr", 1, 1), ("rxt", 1, -1), ("trx", 0, 1), ("xtd", 0, 1), ("dxt", 1, 1)]
)
def test_steps_are_those_of_the_authors_loop(tmp_path: Path, names: str, noise_at: int, sign: int, steps: int) -> None:
    torch.manual_seed(0)
    network = Mean(names, sign)
    velocity = load(take(network, tmp_path, ",".join(names), noise_at, sign)).velocity
    x0 = torch.randn(6, 3)
    given = integrate_indexed(
        lambda x, t, _: velocity(x, t), x0, resolve(solver="euler", steps=steps), step_ends=True
    ).x
    times = torch.linspace(float(noise_at), 1.0 - noise_at, steps + 1)
    z = x0
    for t, r in pairwise(times):  # z_r = z_t - (t - r) u(z_t, r, t), MeanFlow's eq. 4
        rows = {"x": z, "t": t.expand(6), "r": r.expand(6), "d": (t - r).abs().expand(6)}
        with torch.no_grad():
            z = z - (t - r) * sign * network(*(rows[name] for name in names))
    torch.testing.assert_close(given, z, rtol=0, atol=1e-6)


def test_it_is_served_as_such(tmp_path: Path) -> None:
    checkpoint = load(take(Mean("xtr"), tmp_path, "x,t,r", 1, 1))
    assert checkpoint.card.field is FieldKind.AVERAGE
    assert checkpoint.velocity.field is FieldKind.AVERAGE
    assert checkpoint.card.conditions == {}


@pytest.mark.parametrize("inputs", [None, "x,t,c", "x,d,r"])
def test_without_the_end_of_a_step_it_is_refused(tmp_path: Path, inputs: str | None) -> None:
    with pytest.raises(ForeignError, match=r"--inputs x,t,r|x for states and t and"):
        take(Mean("xtr"), tmp_path, inputs, 1, 1)
