import torch
from torch import Tensor, nn

from training.loss import flow_matching_loss
from training.paths import OptimalTransportPath


class Recorder(nn.Module):
    """Answers with a constant and keeps what it was asked."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.asked = (x, t)
        return torch.full_like(x, 2.0)


def test_loss_is_the_mean_square_over_rows_and_coordinates():
    x0 = torch.zeros(2, 2)
    x1 = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # targets; errors 1, 0, -1, -2
    loss = flow_matching_loss(Recorder(), OptimalTransportPath(), x0, x1, torch.tensor([0.5, 1.0]))
    assert loss.item() == (1 + 0 + 1 + 4) / 4


def test_network_is_asked_on_the_path_at_the_rows_times():
    network, t = Recorder(), torch.tensor([0.5, 1.0])
    flow_matching_loss(network, OptimalTransportPath(), torch.zeros(2, 1), torch.full((2, 1), 8.0), t)
    assert network.asked[0].flatten().tolist() == [4.0, 8.0]
    assert network.asked[1] is t
