"""The client's own samples: as a body has them, as states of a model, and the memory that they take."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, WithJsonSchema

from service.errors import check_limit, invalid
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, sized
from service.requests.known import inverse_of
from service.requests.schemas import Body, Solving
from service.requests.sizes import doubles_bytes
from service.requests.tensors import Tensor, to_array
from service.requests.validation import Validated
from service.responses.solved import written_as
from service.settings import Settings

BACK = (1.0, 0.0)
"""The span from data to noise."""

_SAMPLES_SCHEMA = {
    "description": "data, shape (num_samples, *data_shape), or states, (num_samples, *event_shape), without decode",
    "type": "array",
    "minItems": 1,
    "items": {},
}

Residual = Annotated[
    NDArray[np.float64],
    written_as(list[float | None]),
    Field(description="for each sample, the largest difference from its decoded state; only with a decoder"),
]


class Data(Body):
    """The client's own samples."""

    samples: Annotated[Any, WithJsonSchema(_SAMPLES_SCHEMA), Tensor()]
    decode: bool = True
    """true: samples are data, as responses give them; false: states in the model's own coordinates"""


class DataRequest(Solving, Data):
    """Data, and how to solve back from t = 1 to 0."""


@dataclass(frozen=True, kw_only=True)
class ValidatedData(Validated):
    """A request about the client's own samples.

    Attributes:
        residual: (n,) largest absolute difference of each sample from its decoded state; None without a decoder.
        log_volume: (n,) log abs det J of the decoder at each of the states; None without a decoder.
    """

    residual: NDArray[np.float64] | None = None
    log_volume: NDArray[np.float64] | None = None


def sized_data(
    request: DataRequest, model: ModelVersion, settings: Settings
) -> tuple[int, CheckedConditions, ModelVersion]:
    """Return the number of samples, their conditions, and the model with sizes of its free axes.

    Raises:
        ProblemError: 422 for samples that are not a list, empty or too many, and as in `conditions.sized`.
    """
    samples = request.samples
    is_list = isinstance(samples, list) or (isinstance(samples, np.ndarray) and samples.ndim > 0)
    if not is_list or not len(samples):
        raise invalid(
            "samples", "samples must be a list of at least one sample, in the form in which responses give them"
        )
    check_limit("samples", len(samples), settings.max_samples, " samples")
    shape = model.card.data_shape if request.decode else model.card.event_shape
    return len(samples), *sized(request, model, len(samples), "samples", samples, shape)


def data_bytes(n: int, model: ModelVersion) -> int:
    """Return the bytes of n samples besides their states: as doubles, as sent, decoded again, and in the response."""
    return doubles_bytes(n, model.data_shape) + 3 * n * math.prod(model.data_shape) * model.dtype.itemsize


def states_of(request: DataRequest, model: ModelVersion) -> tuple[ModelVersion, torch.Tensor, dict[str, Any]]:
    """Return the samples of a request as states (n, *event_shape), and with a decoder the fields of `ValidatedData`.

    The model comes back, too: not deterministic if a state does not depend on its own sample alone, to the bit.

    Raises:
        ProblemError: 422 for another shape, for numbers that are not finite in the model's dtype, and for data of a
            model with a decoder that has no inverse.
    """
    name, shape = ("data_shape", model.data_shape) if request.decode else ("event_shape", model.event_shape)
    dtype = model.data_dtype if request.decode else model.dtype
    samples = to_array(request.samples, (len(request.samples), *shape), dtype, "samples", name)
    if not request.decode or model.plain:
        return model, samples.reshape(-1, *model.event_shape), {}
    encode, log_volume = inverse_of(model, "decode")
    with torch.inference_mode():
        x = encode(samples).to(model.dtype)
        residual = (model.decode(x) - samples).abs().flatten(1).amax(dim=1).double().numpy()
    exact = model.deterministic and encode.deterministic
    decoded = {"residual": residual, "log_volume": log_volume(samples).numpy()}
    return replace(model, deterministic=exact), x, decoded
