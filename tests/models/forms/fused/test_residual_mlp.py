import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conditions import NamedCondition
from models.conventions import TimeCard, adapt
from models.forms.form import choose
from models.forms.fused.residual_mlp import FusedResidualMLP, can_fuse
from models.forms.rows import field_rows
from models.noise import noise
from models.velocity import VelocityError

LABELS, VECTORS = NamedCondition.label(classes=3), NamedCondition.vector(width=5)
ROWS = [*range(1, 52), 95, 96, 97, 143, 144, 145, 287, 300, 511, 1023, 1100]


def network(**sizes: Any) -> ResidualMLP:
    torch.manual_seed(0)
    made = ResidualMLP(ResidualMLPConfig(**sizes)).requires_grad_(False)
    for parameter in made.parameters():  # no weight is zero or one, as in an untrained network
        parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def inputs(rows: int, dim: int, condition: NamedCondition | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    t = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    return noise(5, 0, rows, (dim,)), t, None if condition is None else condition.examples(rows, torch.float32)


def exact(net: ResidualMLP, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
    double = ResidualMLP(net.config).double()
    double.load_state_dict({key: value.double() for key, value in net.state_dict().items()})
    given = condition.double() if condition is not None and condition.is_floating_point() else condition
    return double(x.double(), t.double(), given).detach()


def rms(error: Tensor) -> float:
    return float(error.square().mean().sqrt())


@pytest.mark.parametrize("condition", [None, LABELS, VECTORS, NamedCondition.vector(width=1, null=False)])
@pytest.mark.parametrize(
    "sizes",
    [
        {"dim": 2, "hidden": 256, "blocks": 4},
        {"dim": 64, "hidden": 512, "blocks": 2},
        {"dim": 2, "hidden": 130, "blocks": 3},
        {"dim": 17, "hidden": 33, "blocks": 2, "time_width": 42},
        {"dim": 1, "hidden": 1, "blocks": 1, "time_width": 4},
        {"dim": 3, "hidden": 64, "blocks": 0},
        {"dim": 2, "hidden": 64, "blocks": 2, "max_frequency": 1e6},
    ],
)
def test_it_is_as_near_to_float64_as_the_eager_network(sizes: dict[str, Any], condition: NamedCondition | None) -> None:
    net = network(condition=condition, **sizes)
    asks = inputs(300, net.config.dim, condition)
    true = exact(net, *asks)
    eager, fused = rms(net(*asks).double() - true), rms(FusedResidualMLP(net)(*asks).double() - true)
    assert fused <= 2 * eager + 1e-8


def test_every_width_from_1_to_300_agrees_with_the_eager_network() -> None:
    x, t, _ = inputs(7, 2)
    for hidden in range(1, 301):
        net = network(dim=2, hidden=hidden, blocks=1)
        torch.testing.assert_close(FusedResidualMLP(net)(x, t), net(x, t), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("condition", [None, LABELS, VECTORS])
@pytest.mark.parametrize("hidden", [256, 130, 24])
def test_the_bits_of_a_row_are_the_same_in_any_company(hidden: int, condition: NamedCondition | None) -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=hidden, blocks=2, condition=condition))
    asks = [part for part in inputs(max(ROWS), 2, condition) if part is not None]
    whole = fused(*asks)
    generator = torch.Generator().manual_seed(2)
    for rows in ROWS:
        chosen = torch.randperm(max(ROWS), generator=generator)[:rows]
        assert torch.equal(fused(*(part[chosen] for part in asks)), whole[chosen]), f"{rows} rows"


@pytest.mark.parametrize("condition", [None, LABELS, VECTORS])
def test_the_number_of_threads_changes_no_bit(condition: NamedCondition | None) -> None:
    fused = FusedResidualMLP(network(dim=3, hidden=40, blocks=2, condition=condition))
    asks = [part for part in inputs(500, 3, condition) if part is not None]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            found.append(fused(*asks))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_rows_are_not_padded() -> None:
    field = field_rows(FusedResidualMLP(network(dim=2, hidden=130, blocks=2)), (2,), torch.float32, independent=True)
    assert field.counts == ()
    x, t, _ = inputs(100, 2)
    whole = field(x, t)
    assert all(torch.equal(field(x[:rows], t[:rows]), whole[:rows]) for rows in range(1, 100))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_a_row_that_is_not_finite_stays_alone(bad: float) -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=64, blocks=2))
    x, t, _ = inputs(60, 2)
    sound = fused(x, t)
    x[17], t[31] = bad, torch.nan
    found = fused(x, t)
    healthy = torch.tensor([row not in (17, 31) for row in range(60)])
    assert torch.equal(found[healthy], sound[healthy])
    assert not found[17].isfinite().all()
    assert found[31].isnan().all()
    assert torch.equal(fused(x[:0], t[:0]), x[:0])


def test_equal_times_are_embedded_once_with_the_same_bits() -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=64, blocks=2))
    x, t, _ = inputs(50, 2)
    together = fused(x, t[:1].expand(50))
    for row in range(50):
        assert torch.equal(fused(x[row : row + 1], t[:1]), together[row : row + 1])


def test_strided_and_unaligned_states_give_the_same_bits() -> None:
    fused = FusedResidualMLP(network(dim=3, hidden=64, blocks=2, condition=VECTORS))
    x, t, condition = inputs(40, 3, VECTORS)
    assert condition is not None
    whole = fused(x, t, condition)
    assert torch.equal(fused(x.T.contiguous().T, t, condition.T.contiguous().T), whole)
    assert torch.equal(fused(x[1:], t[1:], condition[1:]), whole[1:])
    assert torch.equal(fused(x[::2], t[::2], condition[::2]), whole[::2])


def test_threads_may_call_at_once() -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=64, blocks=2))
    x, t, _ = inputs(200, 2)
    whole, wrong = fused(x, t), []

    def ask(begin: int) -> None:
        for _ in range(30):
            if not torch.equal(fused(x[begin : begin + 150], t[begin : begin + 150]), whole[begin : begin + 150]):
                wrong.append(begin)

    threads = [threading.Thread(target=ask, args=(begin,)) for begin in (0, 17, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_keeps_the_parameters_it_was_made_with() -> None:
    net = network(dim=2, hidden=32, blocks=1)
    fused = FusedResidualMLP(net)
    x, t, _ = inputs(5, 2)
    before = fused(x, t)
    net.output.weight.zero_()
    assert torch.equal(fused(x, t), before)


@pytest.mark.parametrize(
    ("x", "t", "condition"),
    [
        (torch.zeros(2, 3), torch.zeros(2), None),
        (torch.zeros(2, 2).double(), torch.zeros(2), None),
        (torch.zeros(2, 2), torch.zeros(2).double(), None),
        (torch.zeros(2, 2), torch.zeros(3), None),
        (torch.zeros(2, 2), torch.zeros(2), torch.tensor([0, 4])),
        (torch.zeros(2, 2), torch.zeros(2), torch.tensor([-1, 0])),
        (torch.zeros(2, 2), torch.zeros(2), torch.zeros(2)),
    ],
)
def test_what_it_does_not_take_is_refused(x: Tensor, t: Tensor, condition: Tensor | None) -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=8, blocks=1, condition=LABELS))
    with pytest.raises(VelocityError):
        fused(x, t, condition)


def test_an_unconditional_network_takes_no_condition() -> None:
    fused = FusedResidualMLP(network(dim=2, hidden=8, blocks=1))
    with pytest.raises(VelocityError, match="unconditional"):
        fused(torch.zeros(1, 2), torch.zeros(1), torch.tensor([0]))


def test_the_rule_looks_at_the_network() -> None:
    assert can_fuse(network(dim=2, hidden=8)) is None
    assert can_fuse(network(dim=2, hidden=8).double()) == "weights are torch.float64; the fused form is float32"


def test_a_network_of_another_convention_is_fused_inside_of_its_adapter() -> None:
    net = adapt(network(dim=2, hidden=32, blocks=1), TimeCard(noise_at=1, data_at=0, scale=1000.0, sign=-1))
    form = choose(net)
    assert form.path == "fused"
    x, t, _ = inputs(9, 2)
    torch.testing.assert_close(form.velocity(x, t), net(x, t), rtol=1e-4, atol=1e-4)


def test_a_fused_form_that_is_not_as_good_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(dim=2, hidden=32, blocks=1)
    monkeypatch.setattr(FusedResidualMLP, "__call__", lambda self, x, t, condition=None: net(x, t) * 1.001)
    form = choose(net)
    assert form.velocity is net
    assert form.path == "eager"
    assert "rms" in form.reason


def test_without_a_compiler_the_network_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room\nleft")

    net = network(dim=2, hidden=32, blocks=1)
    choose(net)
    monkeypatch.setattr("models.forms.fused.residual_mlp._evaluate", fail)
    assert choose(net).reason == "the fused form could not be compiled: OSError: no room"
