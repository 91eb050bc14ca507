"""From samples that a client has to states of the model, and how much of them the model cannot hold."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.inverse import InverseError
from service.errors import invalid
from service.operations.schemas import Given
from service.registry.served import Served
from service.requests.arrays import to_array


@dataclass(frozen=True)
class States:
    """Samples as the model sees them.

    Attributes:
        x: (n, *event_shape) states.
        residual: (n,) largest absolute difference of each sample from what its state decodes to; None without decoder.
        log_volume: log of the volume that decoding makes of 1.
        deterministic: whether each state depends on its own sample alone, to the bit.
    """

    x: torch.Tensor
    residual: NDArray[np.float64] | None = None
    log_volume: float = 0.0
    deterministic: bool = True


def count_of(samples: Any) -> int:
    """Return how many samples a client sent.

    Raises:
        ProblemError: 422 if it is no list, or an empty one.
    """
    if not isinstance(samples, list) or not samples:
        raise invalid(
            "samples", "samples must be a list of at least one sample, in the form in which answers give them"
        )
    return len(samples)


def data_bytes(n: int, model: Served) -> int:
    """Return the bytes of memory that n samples take beside their states: as they came, decoded again, and answered."""
    return 3 * n * math.prod(model.card.data_shape) * model.dtype.itemsize


def states_of(request: Given, model: Served) -> States:
    """Return the samples of a request as states.

    Raises:
        ProblemError: 422 for another shape, for what is no finite number in the model's dtype, and for data of a model
            whose decoder has no inverse.
    """
    name, shape = ("data_shape", model.card.data_shape) if request.decode else ("event_shape", model.event_shape)
    array = to_array(request.samples, (count_of(request.samples), *shape), "samples", name)
    dtype, called = (model.data_dtype, model.card.data_dtype) if request.decode else (model.dtype, model.card.dtype)
    given = torch.from_numpy(array).to(dtype)
    if not given.isfinite().all():
        raise invalid("samples", f"samples holds a number that is not finite in {called}")
    if not request.decode:
        return States(given)
    if model.plain:
        return States(given.reshape(-1, *model.event_shape))
    try:
        encode, log_volume = model.inverse
    except InverseError as error:
        raise invalid(
            "decode",
            f"data cannot be turned into states of model {model.name!r}: {error}; send states, with decode false",
        ) from None
    with torch.inference_mode():
        x = encode(given).to(model.dtype)
        again = model.decode(x)
        residual = (again - given).abs().flatten(1).amax(dim=1).double().numpy()
    return States(x, residual, log_volume, encode.deterministic)
