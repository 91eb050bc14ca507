"""Request validation: a parsed request and its model become a `Job`, or an error before any work.

Limits are checked first, so that nothing is allocated for too many steps or samples. Only `solvers` checks what a
solver can do.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from engine.job import GUIDED, SAMPLE, Job, Priority
from models.arrays import NestedError, to_floats
from models.condition_values import repeated
from selection.choice import Choice
from service.errors import check_limit, invalid
from service.ledger import Hold, MemoryOwner
from service.registry.version import ModelVersion
from service.requests.alike import Needs, RequestKind
from service.requests.conditions import CheckedConditions
from service.requests.known import check_known, known_of
from service.requests.schemas import DRAWN_BITS, INTEGER_LIMIT, Drawn, SampleRequest, Subject
from service.requests.shapes import sized
from service.requests.sizes import check_format, check_size, kept_steps, logged_beyond, memory_bytes, response_bytes
from service.requests.solver import check_transitions, plan_of, span_of, times_of
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
        constant: members of the response of samples that are the same for all requests alike; filled by the first.
    """

    model: ModelVersion
    job: Job
    encoder: Encoder
    decode: bool = True
    max_bytes: int = 0
    choice: Choice | None = None
    constant: dict[str, Any] = field(default_factory=dict)


_LESS = "ask for fewer samples and page with first_index, save and trace less, or lower max_nfe"
_MANY = "ask for fewer at a time, with first_index for the next; iter_samples and bulk of the Python client do so"


def validate_sample(
    request: SampleRequest,
    model: ModelVersion,
    settings: Settings,
    encoder: Encoder,
    http: MemoryOwner,
    kind: RequestKind | None = None,
) -> Validated:
    """Check a sample request against its model and the limits, reserve its memory and make its job.

    Args:
        request: the parsed body.
        model: the requested model.
        settings: the limits.
        encoder: the format of the response.
        http: the HTTP request, or whatever else memory is reserved for.
        kind: what is known of requests like this one, in which what they need is noted.

    Raises:
        ProblemError: 422 with the field, its value and the allowed values; 406 if the format cannot represent the
            samples; 413 or 429 if there is no memory.
    """
    if request.first_index:
        check_indices(request)
    needs = None if kind is None else kind.needs
    plan = None if needs is None or needs.model() is not model or needs.encoder is not encoder else needs.plan()
    if needs is None or plan is None:
        request, sized_model, plan, needs = _needed(request, model, settings, encoder)
        if kind is not None and sized_model is model:
            kind.needs = needs
        model = sized_model
    n = request.num_samples
    if request.first_index and plan.batch:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    hold = http.reserve(needs.memory, needs.checked.bytes)
    job = job_of(
        request,
        model,
        plan,
        hold,
        needs.checked,
        num_samples=n,
        deadline=http.deadline,
        trace=request.trace,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        noise_scale=request.noise_scale,
        start_time=needs.start_time,
        x0=None if request.x0 is None else to_array(request.x0, (n, *model.event_shape), model.dtype),
        save_at=needs.save_at,
        known=None if request.known is None else known_of(request.known, n, model, request.decode),
        operation=SAMPLE if request.known is None or request.known.mode == "replace" else GUIDED,
        partial=request.on_timeout == "partial",
        decode=request.decode and model.decodes_in_engine,
        log_prob=request.log_prob,
    )
    return Validated(model, job, encoder, request.decode, needs.max_bytes, needs.choice, needs.constant)


def _needed(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder
) -> tuple[SampleRequest, ModelVersion, Plan, Needs]:
    """Return a request with a solver named, its model with a size for each free axis, its plan and what it needs.

    Raises:
        ProblemError: as in `validate_sample`.
    """
    check_limit("num_samples", request.num_samples, settings.max_samples, advice=_MANY)
    check_limit("save_at", request.saved_times, settings.max_saved, " times")
    t_span = span_of(request, model)
    if t_span[0] != 0 and request.x0 is None and request.start_time is None:
        raise invalid(
            "x0", f"t_span starts at {t_span[0]:g}, where there is no noise to draw; give x0, the states to start from"
        )
    if request.x0 is not None and request.noise_scale != 1:
        raise invalid("noise_scale", "noise_scale is for the noise of a seed, and x0 was given; leave one of them out")
    checked, model = sized(request, model, request.num_samples, {"x0": (request.x0, model.card.event_shape)})
    check_format(request, model, encoder)
    request, choice, plan = plan_of(request, model, t_span, settings)
    save_at = None if request.save_at is None else times_of(request, "save_at", plan)
    if request.log_prob:
        check_transitions(plan)
    if request.known is not None:
        check_known(request.known, request, model, plan, checked)
    max_bytes = response_bytes(request, model, plan, encoder)
    trace = " with trace 'full'" if request.trace == "full" else ""
    check_size("num_samples", f"num_samples = {request.num_samples}{trace}", max_bytes, encoder, settings, _LESS)
    memory = memory_bytes(request, model, plan, encoder, max_bytes, checked)
    needs = Needs(ref(model), ref(plan), encoder, checked, choice, save_at, max_bytes, memory, request.start_time)
    return request, model, plan, needs


_PRIORITIES = {priority.value: priority for priority in Priority}


def job_of(
    request: Subject,
    model: ModelVersion,
    plan: Plan,
    hold: Hold,
    checked: CheckedConditions,
    *,
    num_samples: int,
    deadline: float,
    trace: str = "none",
    lanes_of: NDArray[np.int64] | None = None,
    **fields: Any,
) -> Job:
    """Return the job of a checked request; it reserves memory for attempted steps beyond those that `hold` expects.

    Args:
        request: the parsed body.
        model: the requested model.
        plan: the compiled solver.
        hold: the memory held for the request.
        checked: the conditions and guidance of its samples.
        lanes_of: (lanes,) index of the sample that gives each lane its conditions; None if lane i is sample i.
        num_samples, deadline, trace: see `Job`.
        fields: other fields of `Job`.
    """
    conditions, negative, own = (None, None, ()) if checked.values is None else checked.tensors()
    return Job(
        model=model.name,
        version=model.version,
        plan=plan,
        num_samples=num_samples,
        conditions=conditions if lanes_of is None else repeated(conditions, lanes_of),
        guidance=checked.guidance,
        negative=negative if lanes_of is None else repeated(negative, lanes_of),
        own=own,
        sizes=model.sizes,
        deadline=deadline,
        trace=trace,
        priority=_PRIORITIES[request.priority],
        on_logged=logged_beyond(hold, num_samples * kept_steps(plan, trace)),
        **fields,
    )


def check_indices(request: Drawn) -> None:
    """Refuse samples beyond the end of a seed.

    Raises:
        ProblemError: 422.
    """
    if request.first_index + request.num_samples > INTEGER_LIMIT:
        raise invalid(
            "first_index",
            f"first_index + num_samples = {request.first_index + request.num_samples} is over 2**63, the end of a seed",
        )


def seed_of(seed: int | None) -> int:
    """Return the seed, or draw one that a double holds exactly, as JavaScript and jq read any number as a double."""
    return secrets.randbits(DRAWN_BITS) if seed is None else seed


def to_array(
    nested: Any, shape: Sequence[int], dtype: torch.dtype, name: str = "x0", event: str = "event_shape"
) -> torch.Tensor:
    """Return nested lists of numbers, or an array of them, as a tensor.

    Args:
        nested: the value sent in the request.
        shape: the shape it must have, (num_samples, *event_shape).
        dtype: float32 or float64.
        name, event: the names of the field and of the shape of one sample.

    Raises:
        ProblemError: 422 for another shape, for non-numeric values, including booleans, for an integer too large for
            double precision, and for numbers that are not finite in the dtype.
    """
    expected = f"(num_samples, *{event}) = {list(shape)}"
    if not isinstance(nested, np.ndarray):
        try:
            nested = to_floats(nested, tuple(shape), name, expected)
        except NestedError as error:
            raise invalid(name, str(error)) from None
    if nested.shape != tuple(shape):
        raise invalid(name, f"{name} has the shape {list(nested.shape)}; it must be {expected}")
    kind = "float64" if dtype == torch.float64 else "float32"
    with np.errstate(over="ignore"):
        tensor = torch.from_numpy(nested.astype(kind))
    if not tensor.isfinite().all():
        raise invalid(name, f"{name} holds a number that is not finite in {kind}")
    return tensor
