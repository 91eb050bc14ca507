"""Request validation: a parsed request and its model become a `Job`, or an error before any work.

Limits are checked first, so that nothing is allocated for too many steps or samples. Only `solvers` checks what a
solver can do.

Most requests for samples differ from an earlier one in their seed, their place in its stream and their time limit only.
What follows from the rest is the same for all of them: that their fields are valid, the solver they take, how much
memory they need, and most of their response. So it is found once, for the first request of a kind.
"""

import secrets
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from engine.job import Job, Priority
from models.condition_values import repeated
from selection.choice import Choice
from service.errors import check_limit, invalid
from service.http.context import Context
from service.ledger import MemoryOwner
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, sized
from service.requests.known import GUIDED, check_known, known_of
from service.requests.parsing import check, json_members
from service.requests.schemas import DRAWN_BITS, SampleRequest, Subject
from service.requests.sizes import check_format, check_size, kept_steps, logged_beyond, memory_bytes, response_bytes
from service.requests.solver import check_transitions, plan_of, span_of, times_of
from service.requests.tensors import INTEGER_LIMIT, to_array
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


@dataclass(eq=False)
class Needs:
    """What requests alike need of one version of their model; it keeps neither version nor compiled solver in memory.

    Attributes:
        model, plan: the version and the compiled solver.
        checked: the conditions and guidance of their samples.
        choice: the service's choice of solver, if they left it to the service.
        save_at: times at which to save states.
        max_bytes: upper bound on the response.
        memory: bytes that one holds until its response is sent.
        start_time: see `Job`.
        constant: members of the response that are the same for all of them; empty until the first response.
    """

    model: ref[ModelVersion]
    plan: ref[Plan]
    checked: CheckedConditions
    choice: Choice | None
    save_at: NDArray[np.float64] | None
    max_bytes: int
    memory: int
    start_time: float | None
    constant: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class RequestKind:
    """Requests alike, at one address in one format: the first, and what they need of the version that answered last."""

    request: SampleRequest
    needs: Needs | None = None


MAX_ALIKE = 1024
"""Bytes; a larger body is checked each time."""

_MAX_KINDS = 1024
_FOREVER_S = 1e9
_LESS = "ask for fewer samples and page with first_index, save and trace less, or lower max_nfe"
_MANY = "ask for fewer at a time, with first_index for the next; iter_samples and bulk of the Python client do so"


def sample_request(http: Context, body: bytes) -> SampleRequest:
    """Parse a small body of a request for samples, and note its kind in the context.

    Raises:
        ProblemError: as in `parsing.parse`.
    """
    members = json_members(body)
    same = members.copy()
    seed, first_index, timeout_s = same.pop("seed", None), same.pop("first_index", 0), same.pop("timeout_s", None)
    kinds: dict[Any, RequestKind] = http.service.kinds
    key = http.scope["path"], http.media_type, repr(same)
    kind = kinds.get(key)
    if (
        kind is None
        or not (seed is None or (type(seed) is int and 0 <= seed < INTEGER_LIMIT))
        or not (type(first_index) is int and 0 <= first_index < INTEGER_LIMIT)
        or not (timeout_s is None or (type(timeout_s) in (int, float) and 0 < timeout_s < _FOREVER_S))
    ):
        request = check(SampleRequest, members)
        if request.budget is not None:  # what it chooses depends on the frontier's file and the load
            return request
        kind = kinds[key] = RequestKind(request)
        if len(kinds) > _MAX_KINDS:
            del kinds[next(iter(kinds))]
    else:
        limit_s = None if timeout_s is None else float(timeout_s)
        individual = {"seed": seed, "first_index": first_index, "timeout_s": limit_s}
        request = _copy(kind.request, individual)
    http.alike = kind
    return request


def _copy(request: SampleRequest, update: dict[str, Any]) -> SampleRequest:
    """Return a copy with other values: `model_copy` without its copies of what no request changes, 18 calls fewer."""
    copy = object.__new__(SampleRequest)
    object.__setattr__(copy, "__dict__", {**request.__dict__, **update})
    object.__setattr__(copy, "__pydantic_fields_set__", request.__pydantic_fields_set__ | update.keys())
    object.__setattr__(copy, "__pydantic_extra__", None)
    object.__setattr__(copy, "__pydantic_private__", None)
    return copy


def validate_sample(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder, http: MemoryOwner
) -> Validated:
    """Check a sample request against its model and the limits, reserve its memory and make its job.

    What it needs is noted for requests alike.

    Raises:
        ProblemError: 422 with the field, its value and the allowed values; 406 if the format cannot represent the
            samples; 413 or 429 if there is no memory.
    """
    kind: RequestKind | None = http.alike
    needs = None if kind is None else kind.needs
    plan = None if needs is None or needs.model() is not model else needs.plan()
    if needs is None or plan is None:
        model, plan, needs = _needed(request, model, settings, encoder)
        if kind is not None:
            kind.needs = needs
    job = job_of(
        http,
        request,
        model,
        plan,
        needs.checked,
        needs.memory,
        num_samples=request.num_samples,
        seed=request.seed,
        first_index=request.first_index,
        x0=request.x0,
        trace=request.trace,
        noise_scale=request.noise_scale,
        start_time=needs.start_time,
        save_at=needs.save_at,
        partial=request.on_timeout == "partial",
        decode=request.decode and model.decodes_in_engine,
        log_prob=request.log_prob,
    )
    if request.known is not None:
        known = known_of(request.known, request.num_samples, model, request.decode)
        job = replace(job, known=known)
        if known.weights is not None:
            job = replace(job, operation=GUIDED, constants=known.constants())
    return Validated(model, job, encoder, request.decode, needs.max_bytes, needs.choice, needs.constant)


def _needed(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder
) -> tuple[ModelVersion, Plan, Needs]:
    """Return the model of a request with a size for each free axis, its plan and what it needs.

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
    checked, model = sized(request, model, request.num_samples, "x0", request.x0, model.card.event_shape)
    check_format(request, model, encoder)
    plan, choice, start_time = plan_of(request, model, t_span, settings)
    save_at = None if request.save_at is None else times_of(request, "save_at", plan)
    if request.log_prob:
        check_transitions(plan)
    if request.known is not None:
        check_known(request.known, request, model, plan, checked)
    max_bytes = response_bytes(request, model, plan, encoder)
    trace = " with trace 'full'" if request.trace == "full" else ""
    check_size("num_samples", f"num_samples = {request.num_samples}{trace}", max_bytes, encoder, settings, _LESS)
    memory = memory_bytes(request, model, plan, encoder, max_bytes, checked)
    needs = Needs(ref(model), ref(plan), checked, choice, save_at, max_bytes, memory, start_time)
    return model, plan, needs


_PRIORITIES = {priority.value: priority for priority in Priority}


def job_of(
    http: MemoryOwner,
    request: Subject,
    model: ModelVersion,
    plan: Plan,
    checked: CheckedConditions,
    memory: int,
    *,
    num_samples: int,
    seed: int | None = None,
    first_index: int = 0,
    x0: Any = None,
    trace: str = "none",
    lanes_of: NDArray[np.int64] | None = None,
    **fields: Any,
) -> Job:
    """Reserve the memory of a checked request, and return its job: the last step of every validation.

    The job reserves memory for attempted steps beyond those that `memory` expects.

    Args:
        http: the HTTP request, or whatever else memory is reserved for.
        request: the parsed body.
        model: has a size for each free axis.
        plan: the compiled solver.
        checked: the conditions and guidance of its samples.
        memory: bytes that it holds until its response is sent, besides those of the conditions.
        seed: None to draw one.
        x0: start states as they were sent; None for noise.
        lanes_of: (lanes,) index of the sample that gives each lane its conditions; None if lane i is sample i.
        num_samples, first_index, trace: see `Job`.
        fields: other fields of `Job`.

    Raises:
        ProblemError: 413 or 429 if there is no memory; 422 for samples beyond the end of a seed, for those that do not
            begin a seed and share their steps, and for values that are not numbers, or not finite in their dtype.
    """
    if first_index:
        _check_indices(first_index, num_samples, plan)
    hold = http.reserve(memory, checked.bytes)
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
        seed=secrets.randbits(DRAWN_BITS) if seed is None else seed,
        first_index=first_index,
        x0=None if x0 is None else to_array(x0, (num_samples, *model.event_shape), model.dtype),
        deadline=http.deadline,
        trace=trace,
        priority=_PRIORITIES[request.priority],
        on_logged=logged_beyond(hold, num_samples * kept_steps(plan, trace)) if plan.adaptive else None,
        **fields,
    )


def _check_indices(first_index: int, num_samples: int, plan: Plan) -> None:
    if first_index + num_samples > INTEGER_LIMIT:
        raise invalid(
            "first_index", f"first_index + num_samples = {first_index + num_samples} is over 2**63, the end of a seed"
        )
    if plan.batch:
        raise invalid(
            "first_index",
            f"first_index = {first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
