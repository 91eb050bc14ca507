"""Log-densities and encodings: bodies of ``encode`` and ``log_prob``, and their jobs.

Both go from data back to noise. ``encode`` is what ``POST /v1/sample`` does with `x0` and a reverse `t_span`, in the
same arena and the same network calls. ``log_prob`` solves for x and log p together, with one error norm for both.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, WithJsonSchema

from models.decoder import InverseError
from models.noise import rademacher
from service.errors import check_limit, invalid
from service.ledger import Take
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, refuse_corrections
from service.requests.schemas import BULK, Body, Index, Solving
from service.requests.shapes import sized
from service.requests.sizes import check_arrays_size, doubles_bytes, kept_steps, lanes_bytes
from service.requests.solver import compiled, refuse_average
from service.requests.tensors import Tensor
from service.requests.validation import (
    Validated,
    deadline_of,
    job_of,
    seed_of,
    to_array,
)
from service.responses.arrays import Encoder
from service.responses.densities import LOG_PROB_EXACT, LOG_PROB_HUTCHINSON, States
from service.settings import Settings
from solvers.likelihood import EXACT_UP_TO

BACK = (1.0, 0.0)
"""The span from data to noise."""

MAX_PROBES = 256

MAX_EXACT = 64
"""Maximum numbers per sample for an exact divergence, which costs one vector-Jacobian product per number and call."""

_SAMPLES_SCHEMA = {
    "description": "data, shape (num_samples, *data_shape), or states, (num_samples, *event_shape), without decode",
    "type": "array",
    "minItems": 1,
    "items": {},
}


class Given(Body):
    """The client's own samples."""

    samples: Annotated[Any, WithJsonSchema(_SAMPLES_SCHEMA), Tensor()]
    decode: bool = Field(
        default=True,
        description="true: samples are data, as responses give them; false: states in the model's own coordinates",
    )


class EncodeRequest(Solving, Given):
    """Body of ``encode``: data, and how to solve back from t = 1 to 0."""


class LogProbRequest(Solving, Given):
    """Body of ``log_prob``: data, how to solve back from t = 1 to 0, and how to take the divergence on the way."""

    priority: Literal["interactive", "bulk"] = Field(default="bulk", description=BULK)
    divergence: Literal["auto", "exact", "hutchinson"] = Field(
        default="auto",
        description="exact, an estimate by Rademacher probes, or auto: exact up to 16 numbers per sample",
    )
    probes: int = Field(
        default=1,
        ge=1,
        le=MAX_PROBES,
        description="Rademacher probes of a sample, each with its own path; their estimates are averaged",
    )
    seed: Index | None = Field(default=None, description="seed of the probes; drawn below 2**53 and echoed if omitted")


@dataclass(frozen=True, kw_only=True)
class ValidatedStates(Validated):
    """A request about the client's own samples, with their states."""

    states: States


def validate_encode(
    request: EncodeRequest, model: ModelVersion, settings: Settings, encoder: Encoder, take: Take
) -> ValidatedStates:
    """Check a request, reserve its memory and make its job; arguments and errors as in `validate_sample`."""
    refuse_average(model, "encode follows")
    n = _count(request)
    check_limit("samples", n, settings.max_samples, " samples")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    checked, model = _sized(request, model, n)
    solve = compiled(request, model, BACK, settings)
    shapes = [(n, *model.event_shape), (n,)]
    response_bytes = check_arrays_size("samples", shapes, model.card.dtype, solve, encoder, settings.max_answer_bytes)
    width, steps, deadline = math.prod(model.event_shape), kept_steps(solve, "none"), deadline_of(request, settings)
    needed = lanes_bytes(model, n, width, checked, start=True, steps=steps)
    hold = take(needed + _data_bytes(n, model) + response_bytes, deadline, checked.bytes)
    states = _states_of(request, model)
    job = job_of(request, model, solve, hold, checked, num_samples=n, deadline=deadline, x0=states.x)
    return ValidatedStates(model=model, job=job, encoder=encoder, states=states)


def validate_log_prob(
    request: LogProbRequest, model: ModelVersion, settings: Settings, encoder: Encoder, take: Take
) -> ValidatedStates:
    """Check a request, reserve its memory and make its job: lane p n + i is probe p of sample i.

    Arguments and errors as in `validate_sample`. Each probe of an estimated divergence has its own lane, so their
    spread tells how far off the mean may be.
    """
    refuse_average(model, "log_prob integrates the divergence of")
    n = _count(request)
    checked, model = _sized(request, model, n)
    refuse_corrections(checked)
    width = math.prod(model.event_shape)
    exact = _is_exact(request, width)
    probes = 1 if exact else request.probes
    check_limit("samples", n, settings.max_samples, " samples")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    _check_cost(n, probes, 0 if exact else width, settings)
    solve = compiled(request, model, BACK, settings)
    response_bytes = check_arrays_size("samples", [(n,)] * 3, "float64", solve, encoder, settings.max_answer_bytes)
    lanes, steps, deadline = n * probes, kept_steps(solve, "none"), deadline_of(request, settings)
    constants = 0 if exact else width
    needed = lanes_bytes(model, lanes, width + 1, checked, start=True, constants=constants, steps=steps)
    hold = take(needed + lanes_bytes(model, n, width) + _data_bytes(n, model) + response_bytes, deadline, checked.bytes)
    states = _states_of(request, model)
    seed = 0 if exact else seed_of(request.seed)
    drawn = [rademacher(seed, p, 0, n, (width,), model.dtype) for p in range(0 if exact else probes)]
    flat = states.x.reshape(n, width)
    job = job_of(
        request,
        model,
        solve,
        hold,
        checked,
        num_samples=lanes,
        deadline=deadline,
        seed=seed,
        x0=torch.cat((flat, flat.new_zeros(n, 1)), dim=1).repeat(probes, 1),
        lanes_of=np.tile(np.arange(n), probes),
        operation=LOG_PROB_EXACT if exact else LOG_PROB_HUTCHINSON,
        constants=torch.cat(drawn) if drawn else None,
    )
    return ValidatedStates(model=model, job=job, encoder=encoder, states=states)


def _is_exact(request: LogProbRequest, width: int) -> bool:
    exact = request.divergence == "exact" or (request.divergence == "auto" and width <= EXACT_UP_TO)
    if exact and width > MAX_EXACT:
        raise invalid(
            "divergence",
            f"divergence 'exact' is for samples of up to {MAX_EXACT} numbers, and this model's have {width}; use "
            "'hutchinson' with more probes",
        )
    if exact and request.probes > 1:
        raise invalid("probes", f"probes = {request.probes} with the exact divergence, which needs none; leave it out")
    return exact


def _check_cost(n: int, probes: int, width: int, settings: Settings) -> None:
    if n * probes > settings.max_samples:
        raise invalid(
            "probes",
            f"{n} samples with probes = {probes} are {n * probes} paths, over the limit of {settings.max_samples} of "
            "this service; ask for fewer of either",
        )
    if n * probes * width > settings.max_derivatives:
        raise invalid(
            "samples",
            f"{n} samples of {width} numbers with probes = {probes} need {n * probes * width} random numbers, over the "
            f"limit of {settings.max_derivatives} of this service; send at most "
            f"{settings.max_derivatives // (probes * width)} samples at a time",
        )


def _count(request: Given) -> int:
    """Return the number of samples that were sent.

    Raises:
        ProblemError: 422 if it is not a list, or an empty one.
    """
    samples = request.samples
    is_list = isinstance(samples, list) or (isinstance(samples, np.ndarray) and samples.ndim > 0)
    if not is_list or not len(samples):
        raise invalid(
            "samples", "samples must be a list of at least one sample, in the form in which responses give them"
        )
    return len(samples)


def _data_bytes(n: int, model: ModelVersion) -> int:
    """Return the bytes of n samples besides their states: as doubles, as sent, decoded again, and in the response."""
    return doubles_bytes(n, model.data_shape) + 3 * n * math.prod(model.data_shape) * model.dtype.itemsize


def _sized(
    request: EncodeRequest | LogProbRequest, model: ModelVersion, n: int
) -> tuple[CheckedConditions, ModelVersion]:
    """Return the conditions of the samples, and the model with sizes of its free axes; errors as in `shapes.sized`."""
    shape = model.card.data_shape if request.decode else model.card.event_shape
    return sized(request, model, n, {"samples": (request.samples, shape)})


def _states_of(request: Given, model: ModelVersion) -> States:
    """Return the samples of a request as states.

    Raises:
        ProblemError: 422 for another shape, for numbers that are not finite in the model's dtype, and for data of a
            model with a decoder that has no inverse.
    """
    name, shape = ("data_shape", model.data_shape) if request.decode else ("event_shape", model.event_shape)
    dtype = model.data_dtype if request.decode else model.dtype
    given = to_array(request.samples, (_count(request), *shape), dtype, "samples", name)
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
    return States(x, residual, log_volume(given).numpy(), encode.deterministic)
