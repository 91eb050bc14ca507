import torch

from training.paths import OptimalTransportPath

PATH = OptimalTransportPath()


def test_ends_are_noise_and_data_for_any_event_shape():
    x0, x1 = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    assert torch.equal(PATH.position(x0, x1, torch.zeros(5)), x0)
    assert torch.equal(PATH.position(x0, x1, torch.ones(5)), x1)


def test_velocity_is_the_derivative_of_the_position():
    x0, x1 = torch.randn(2, 6, 2, dtype=torch.float64)
    t = torch.rand(6, dtype=torch.float64, requires_grad=True)
    position = PATH.position(x0, x1, t)
    for axis in range(2):
        (slope,) = torch.autograd.grad(position[:, axis].sum(), t, retain_graph=True)
        torch.testing.assert_close(slope, PATH.velocity(x0, x1, t)[:, axis])


def test_each_row_has_its_own_time():
    x0, x1 = torch.zeros(3, 2), torch.ones(3, 2)
    t = torch.tensor([0.0, 0.25, 1.0])
    assert PATH.position(x0, x1, t)[:, 0].tolist() == t.tolist()
