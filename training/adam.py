"""Adam (Kingma & Ba 2015), as a thin wrapper around torch's functional implementation.

`torch.optim.Adam` computes the same bits with the same function, but creating it imports torch's compiler. That takes
three to five seconds, sometimes longer than training a model of the paper's size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Adam:
    """Adam with beta 0.9 and 0.999, eps 1e-8, and no weight decay.

    Args:
        parameters: the parameters to update, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._moments: dict[str, dict[str, Tensor]] = {
            "step": {name: torch.zeros((), device=p.device) for name, p in self._parameters.items()},
            "exp_avg": {name: torch.zeros_like(p, requires_grad=False) for name, p in self._parameters.items()},
            "exp_avg_sq": {name: torch.zeros_like(p, requires_grad=False) for name, p in self._parameters.items()},
        }

    def forget_gradients(self) -> None:
        """Discard the gradients of the last step."""
        for parameter in self._parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take one step at the learning rate `rate`; parameters without a gradient stay as they are."""
        moved = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        counts, first, second = ([self._moments[key][name] for name in moved] for key in _MOMENTS)
        adam(
            [self._parameters[name] for name in moved],
            list(moved.values()),
            first,
            second,
            [],
            counts,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """Return all that future steps depend on, except parameters and gradients, as `<moment>.<parameter>`."""
        return {f"{key}.{name}": tensor for key, named in self._moments.items() for name, tensor in named.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state; values are copied into this run's own tensors, to keep their memory alignment.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
