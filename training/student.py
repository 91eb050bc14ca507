"""Students: fields of average velocity, learned from a published model, that sample in one or a few network calls.

The average velocity over a step from t to s, u(x_t, t, s) = (x_s - x_t) / (s - t) along the parent's path through x_t,
leads from one end of the step to the other in one call. It obeys

    u(x, t, s) = v(x, t) + (s - t) (d/dt + v . d/dx) u(x, t, s)

with v the parent's velocity (Geng et al. 2025, "Mean flows for one-step generative modeling", eq. 6, in our direction
of time). The loss compares u with the right side, in which u enters without a gradient. In that paper, x1 - x0, with
mean v, stands in for v; a student uses the parent's v itself, which is less noisy and makes the end of the parent's
path the goal (Boffi, Albergo & Vanden-Eijnden 2024, "Flow map matching", Eulerian loss).
"""

import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from models.checkpoint.loading import Checkpoint
from models.network import Network
from training.config import Recipe, StudentConfig
from training.dataset import DataSet
from training.flow_matching import position
from training.parents import check_fit, load_parent, parent_velocity

_SMALLEST = 1e-3
"""Added to the squared error by which a sample's gradient is divided."""


class Teacher:
    """The parent of a student.

    Attributes:
        parent: the published model.
        velocity: its velocity at the recipe's guidance, in float32.
        config: options from the recipe.
    """

    def __init__(self, parent: Checkpoint, config: StudentConfig) -> None:
        self.parent, self.config = parent, config
        parent.velocity.to(torch.float32)
        self.velocity = parent_velocity(parent, config.guidance)
        # torch loads its forward-mode rules, which triggers a warning about torch itself.
        with warnings.catch_warnings(), forward_ad.dual_level():
            warnings.simplefilter("ignore", DeprecationWarning)
            forward_ad.make_dual(torch.zeros(1), torch.ones(1))

    def loss(
        self, network: nn.Module, x0: Tensor, x1: Tensor, t: Tensor, s: Tensor, condition: Tensor | None = None
    ) -> Tensor:
        """Return the mean squared error of the network's average velocity over steps from t to s (rows,).

        The gradient is that of the errors weighted by 1 / (error + 0.001) ** power, sample by sample (Geng et al.
        2025, section 4.3).

        Args:
            network: the field of average velocity.
            x0, x1: noise and data, (rows, *event); their path gives the states at t.
            t, s: starts and ends of the steps, (rows,), t <= s.
            condition: one per row, or None.
        """
        x = position(x0, x1, t)
        with torch.no_grad():
            v = self.velocity(x, t, condition)
        with forward_ad.dual_level():
            moving = torch.stack((forward_ad.make_dual(t, torch.ones_like(t)), s), dim=1)
            conditions = () if condition is None else (condition,)
            u, change = forward_ad.unpack_dual(network(forward_ad.make_dual(x, v.to(x.dtype)), moving, *conditions))
        span = (s - t).reshape(-1, *([1] * (x.ndim - 1)))
        target = v if change is None else v + span * change.detach()
        errors = (u - target).square().flatten(1)
        weights = (errors.detach().sum(1) + _SMALLEST) ** -self.config.power
        weighted = (errors.mean(1) * weights).mean()
        return weighted - weighted.detach() + errors.detach().mean()


def with_teacher(recipe: Recipe, data: DataSet) -> tuple[DataSet, Teacher]:
    """Return the data set with the parent noted for the card, and the parent itself.

    Args:
        recipe: a pinned recipe with `student` (see `training.parents.pin_parent`).
        data: the training data of the parent.

    Raises:
        UsageError: the parent's samples have another shape or condition, it cannot be guided as requested, or it was
            trained on other data.
    """
    config = recipe.student
    assert config is not None  # noqa: S101  (callers check)
    parent = load_parent(config, "student")
    check_fit(parent.card, data, config, "student")
    student = {"parent": parent.card.name, "parent_weights_sha256": config.sha256, "guidance": config.guidance}
    return replace(data, card={**data.card, "student": student}), Teacher(parent, config)


def take_over(network: Network, parent: nn.Module) -> bool:
    """Start from the parent's weights if the networks have the same architecture and size; return whether they do.

    A student's label table has no row for the null, because it does not learn the null.
    """
    theirs = {key: tensor.detach() for key, tensor in parent.state_dict().items()}
    mine = {key: tensor for key, tensor in network.state_dict().items() if not key.startswith("span.")}
    if any(key not in theirs or not _fits(key, tensor, theirs[key]) for key, tensor in mine.items()):
        return False
    with torch.no_grad():
        for key, tensor in mine.items():
            tensor.copy_(theirs[key][: len(tensor)] if tensor.ndim else theirs[key])
    return True


def _fits(key: str, mine: Tensor, theirs: Tensor) -> bool:
    if key == "embed_condition.table.weight" and len(theirs) == len(mine) + 1:
        return mine.shape[1:] == theirs.shape[1:]
    return mine.shape == theirs.shape
