"""The conditional flow-matching loss."""

from torch import Tensor, nn

from training.paths import Path


def flow_matching_loss(
    network: nn.Module, path: Path, x0: Tensor, x1: Tensor, t: Tensor, condition: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of the network's velocity on a conditional path.

    L = E || v(x_t, t) - dx_t/dt ||^2 / dim (Lipman et al. 2023, eq. 9; averaged over the coordinates, so that losses of
    data sets of different dimension can be compared). Its minimum is not zero: it is the spread of x1 - x0 given x_t.

    Args:
        network: the velocity v(x, t), called once with x (rows, *event) and t (rows,).
        path: the conditional path.
        x0: noise, (rows, *event).
        x1: data, (rows, *event).
        t: times in [0, 1], (rows,).
        condition: one a row, or None for a network without.

    Returns:
        A scalar with a gradient.
    """
    given = () if condition is None else (condition,)
    predicted: Tensor = network(path.position(x0, x1, t), t, *given)
    return (predicted - path.velocity(x0, x1, t)).square().mean()
