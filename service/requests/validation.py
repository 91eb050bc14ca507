"""Request validation: a parsed request and its model become a `Job`, or an error before any work.

Limits are checked first, so that nothing is allocated for too many steps or samples. Only `solvers` checks what a
solver can do.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.named_conditions import repeated
from models.nested import NestedError, to_floats
from service.engine.job import Job, Priority
from service.errors import check_limit, invalid
from service.ledger import Hold, Take
from service.registry.version import ModelVersion
from service.requests.budget import Choice
from service.requests.conditions import CheckedConditions
from service.requests.schemas import SEED_LIMIT, Drawn, SampleRequest, Solving
from service.requests.shapes import sized
from service.requests.sizes import check_form, check_size, kept_steps, logged_beyond, memory_bytes, response_bytes
from service.requests.solver import chosen, span_of, times_of
from service.responses.arrays import Encoder
from service.settings import Settings
from solvers.plan import Plan


@dataclass(frozen=True)
class Validated:
    """A validated request. It keeps nothing of the body, as its lists take many times the memory of the tensors.

    Attributes:
        model: the requested model.
        job: the job for the engine.
        encoder: the format of the response.
        decode: whether to return decoded data rather than states.
        max_bytes: upper bound on the response.
        choice: the service's choice of solver, if the request left it to the service.
    """

    model: ModelVersion
    job: Job
    encoder: Encoder
    decode: bool = True
    max_bytes: int = 0
    choice: Choice | None = None


def validate_sample(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder, take: Take
) -> Validated:
    """Check a sample request against its model and the limits, reserve its memory and make its job.

    Args:
        request: the parsed body.
        model: the requested model.
        settings: the limits.
        encoder: the format of the response.
        take: reserves bytes of memory until a deadline.

    Raises:
        ProblemError: 422 with the field, its value and the allowed values; 406 if the format cannot represent the
            samples; any error of `take`.
    """
    n, saved = request.num_samples, len(request.save_at or ())
    check_limit("num_samples", n, settings.max_samples)
    check_limit("save_at", saved, settings.max_saved, " times")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    check_indices(request)
    t_span = span_of(request, model)
    if t_span[0] != 0 and request.x0 is None:
        raise invalid(
            "x0", f"t_span starts at {t_span[0]:g}, where there is no noise to draw; give x0, the states to start from"
        )
    checked, model = sized(request, model, n, {"x0": (request.x0, model.card.event_shape)})
    check_form(request, model, encoder)
    request, choice, solve = chosen(request, model, t_span, settings)
    save_at = None if request.save_at is None else times_of(request, "save_at", solve)
    if solve.batch and request.first_index != 0:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    max_bytes = response_bytes(request, model, solve, encoder)
    check_size(request, max_bytes, encoder, settings.max_answer_bytes)
    x0, deadline = start_of(request.x0, n, model), deadline_of(request, settings)
    hold = take(memory_bytes(request, model, solve, encoder, max_bytes, checked), deadline, checked.bytes)
    job = job_of(
        request,
        model,
        solve,
        hold,
        checked,
        num_samples=n,
        deadline=deadline,
        trace=request.trace,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        x0=x0,
        save_at=save_at,
        partial=request.on_timeout == "partial",
        decode=request.decode and model.decodes_in_engine,
    )
    return Validated(model, job, encoder, request.decode, max_bytes, choice)


def job_of(
    request: Solving,
    model: ModelVersion,
    solve: Plan,
    hold: Hold,
    checked: CheckedConditions,
    *,
    num_samples: int,
    deadline: float,
    trace: str = "none",
    lanes_of: NDArray[np.int64] | None = None,
    **others: Any,
) -> Job:
    """Return the job of a checked request; it reserves memory for attempted steps beyond those that `hold` expects.

    Args:
        request: the parsed body.
        model: the requested model.
        solve: the compiled solver.
        hold: the memory held for the request.
        checked: the conditions and guidance of its samples.
        lanes_of: (lanes,) index of the sample that gives each lane its conditions; None if lane i is sample i.
        num_samples, deadline, trace: see `Job`.
        others: other fields of `Job`.
    """
    conditions, negative = checked.conditions(), checked.negatives()
    return Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=num_samples,
        conditions=conditions if lanes_of is None else repeated(conditions, lanes_of),
        guidance=checked.guidance,
        negative=negative if lanes_of is None else repeated(negative, lanes_of),
        sizes=model.sizes,
        deadline=deadline,
        trace=trace,
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, num_samples * kept_steps(solve, trace)),
        **others,
    )


def check_indices(request: Drawn) -> None:
    """Refuse samples beyond the end of a seed.

    Raises:
        ProblemError: 422.
    """
    if request.first_index + request.num_samples > SEED_LIMIT:
        raise invalid(
            "first_index",
            f"first_index + num_samples = {request.first_index + request.num_samples} is over 2**63, the end of a seed",
        )


def seed_of(seed: int | None) -> int:
    """Return the seed, or draw one."""
    return secrets.randbelow(SEED_LIMIT) if seed is None else seed


def deadline_of(request: Solving, settings: Settings) -> float:
    """Return the deadline of a request, on the clock of `time.monotonic`."""
    return request.came + (request.timeout_s or settings.timeout_s)


def to_array(nested: Any, shape: Sequence[int], name: str = "x0", event: str = "event_shape") -> NDArray[np.float64]:
    """Return nested lists of numbers, or an array of them, as an array.

    Args:
        nested: the value sent in the request.
        shape: the shape it must have, (num_samples, *event_shape).
        name, event: the names of the field and of the shape of one sample.

    Raises:
        ProblemError: 422 for another shape, for non-numeric values, including booleans, and for an integer too large
            for double precision.
    """
    wanted = f"(num_samples, *{event}) = {list(shape)}"
    if not isinstance(nested, np.ndarray):
        try:
            return to_floats(nested, tuple(shape), name, wanted)
        except NestedError as error:
            raise invalid(name, str(error)) from None
    if nested.shape != tuple(shape):
        raise invalid(name, f"{name} has the shape {list(nested.shape)}; it must be {wanted}")
    return nested.astype(np.float64)


def start_of(x0: Any, num_samples: int, model: ModelVersion) -> torch.Tensor | None:
    """Return start states as a tensor (num_samples, *event_shape) in the model's dtype; None if none are given.

    Raises:
        ProblemError: 422 for another shape, or for numbers that are not finite in that dtype.
    """
    if x0 is None:
        return None
    states = torch.from_numpy(to_array(x0, (num_samples, *model.event_shape))).to(model.dtype)
    if not states.isfinite().all():
        raise invalid("x0", f"x0 holds a number that is not finite in {model.card.dtype}")
    return states
