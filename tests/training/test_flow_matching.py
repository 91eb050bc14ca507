import torch
from torch import Tensor, nn

from training.flow_matching import flow_matching_loss, position


def test_ends_are_noise_and_data_for_any_event_shape():
    x0, x1 = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    assert torch.equal(position(x0, x1, torch.zeros(5)), x0)
    assert torch.equal(position(x0, x1, torch.ones(5)), x1)


def test_velocity_is_the_derivative_of_the_position():
    x0, x1 = torch.randn(2, 6, 2, dtype=torch.float64)
    t = torch.rand(6, dtype=torch.float64, requires_grad=True)
    states = position(x0, x1, t)
    for axis in range(2):
        (slope,) = torch.autograd.grad(states[:, axis].sum(), t, retain_graph=True)
        torch.testing.assert_close(slope, (x1 - x0)[:, axis])


def test_each_row_has_its_own_time():
    x0, x1 = torch.zeros(3, 2), torch.ones(3, 2)
    t = torch.tensor([0.0, 0.25, 1.0])
    assert position(x0, x1, t)[:, 0].tolist() == t.tolist()


class Recorder(nn.Module):
    """A network that returns a constant and records its arguments."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.query = (x, t)
        return torch.full_like(x, 2.0)


def test_loss_is_the_mean_square_over_rows_and_coordinates():
    x0 = torch.zeros(2, 2)
    x1 = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # targets; errors 1, 0, -1, -2
    loss = flow_matching_loss(Recorder(), x0, x1, torch.tensor([0.5, 1.0]))
    assert loss.item() == (1 + 0 + 1 + 4) / 4


def test_network_is_asked_on_the_path_at_the_rows_times():
    network, t = Recorder(), torch.tensor([0.5, 1.0])
    flow_matching_loss(network, torch.zeros(2, 1), torch.full((2, 1), 8.0), t)
    assert network.query[0].flatten().tolist() == [4.0, 8.0]
    assert network.query[1] is t
