import torch
from torch import nn

from training.adam import Adam


def pair() -> tuple[nn.Module, nn.Module]:
    networks = nn.Linear(3, 5), nn.Linear(3, 5)
    networks[1].load_state_dict(networks[0].state_dict())
    return networks


def lose(network: nn.Module, step: int) -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(step))
    network(x).square().mean().backward()


def test_the_bits_are_those_of_torchs_class():
    ours, theirs = pair()
    adam, torchs = Adam(dict(ours.named_parameters())), torch.optim.Adam(theirs.parameters(), lr=1e-2, fused=True)
    for step in range(20):
        adam.forget_gradients()
        torchs.zero_grad()
        lose(ours, step)
        lose(theirs, step)
        adam.step(1e-2)
        torchs.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_restored_state_goes_on_alike():
    ours, copy = pair()
    first, second = Adam(dict(ours.named_parameters())), Adam(dict(copy.named_parameters()))
    for step in range(3):
        first.forget_gradients()
        lose(ours, step)
        first.step(1e-2)
    copy.load_state_dict(ours.state_dict())
    second.restore(first.state())
    for network, adam in ((ours, first), (copy, second)):
        adam.forget_gradients()
        lose(network, 3)
        adam.step(1e-2)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), copy.parameters(), strict=True))
    assert {name: float(count) for name, count in first.state().items() if name.startswith("step.")} == {
        "step.weight": 4.0,
        "step.bias": 4.0,
    }


def test_a_parameter_without_a_gradient_stays():
    network, before = pair()
    adam = Adam(dict(network.named_parameters()))
    network.get_parameter("bias").requires_grad_(False)
    lose(network, 0)
    adam.step(1e-2)
    assert torch.equal(network.get_parameter("bias"), before.get_parameter("bias"))
    assert not torch.equal(network.get_parameter("weight"), before.get_parameter("weight"))
