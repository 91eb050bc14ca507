"""Request validation: a parsed request and its model become a `Job`, or an error before any work.

Limits are checked first, so that nothing is allocated for too many steps or samples. Only `solvers` checks what a
solver can do.
"""

import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from numpy.typing import NDArray

from engine.job import Job, Priority
from models.condition_values import repeated
from models.nested import NestedError, to_floats
from selection.choice import Choice
from service.errors import check_limit, invalid
from service.ledger import Hold, Take
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions
from service.requests.schemas import DRAWN_LIMIT, INTEGER_LIMIT, SHORT_TEXT, Drawn, Mark, SampleRequest, Subject
from service.requests.shapes import sized
from service.requests.sizes import check_form, check_size, kept_steps, logged_beyond, memory_bytes, response_bytes
from service.requests.solver import check_transitions, plan_of, span_of, times_of
from service.responses.arrays import ENCODERS, Encoder
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


class _Needs(NamedTuple):
    """What a request for samples needs, whatever their seed.

    Attributes:
        checked: the conditions and guidance of its samples.
        choice: the service's choice of solver, if the request left it to the service.
        plan: the compiled solver, which is kept elsewhere.
        save_at: times at which to save states.
        max_bytes: upper bound on the response.
        memory: bytes that it holds until its response is sent.
        start_time: see `Job`.
    """

    checked: CheckedConditions
    choice: Choice | None
    plan: ref[Plan]
    save_at: NDArray[np.float64] | None
    max_bytes: int
    memory: int
    start_time: float | None


_MANY = "ask for fewer at a time, with first_index for the next; iter_samples and bulk of the Python client do so"

_SAME_NEEDS = frozenset(name for name, field in SampleRequest.model_fields.items() if Mark.SAME_NEEDS in field.metadata)
_PLAIN = frozenset((bool, int, float, str, type(None)))
_MAX_RECENT = 1024
_RECENT: WeakKeyDictionary[ModelVersion, dict[Hashable, _Needs]] = WeakKeyDictionary()
"""The needs of recent requests, as most requests differ from an earlier one only in their seed."""


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
    n, saved = request.num_samples, request.saved_times
    check_limit("num_samples", n, settings.max_samples, advice=_MANY)
    check_limit("save_at", saved, settings.max_saved, " times")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    check_indices(request)
    key = _key(request, settings, encoder)
    needs = None if key is None else _RECENT.get(model, {}).get(key)
    plan = None if needs is None else needs.plan()
    if needs is None or plan is None:
        request, of_sizes, plan, needs = _needed(request, model, settings, encoder)
        if key is not None and of_sizes is model:
            _remember(model, key, needs)
        model = of_sizes
    checked, choice, _, save_at, max_bytes, memory, start_time = needs
    if plan.batch and request.first_index != 0:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    deadline = deadline_of(request, settings)
    hold = take(memory, deadline, checked.bytes)
    job = job_of(
        request,
        model,
        plan,
        hold,
        checked,
        num_samples=n,
        deadline=deadline,
        trace=request.trace,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        noise_scale=request.noise_scale,
        start_time=start_time,
        x0=start_of(request.x0, n, model),
        save_at=save_at,
        partial=request.on_timeout == "partial",
        decode=request.decode and model.decodes_in_engine,
        log_prob=request.log_prob,
    )
    return Validated(model, job, encoder, request.decode, max_bytes, choice)


def _key(request: SampleRequest, settings: Settings, encoder: Encoder) -> Hashable:
    """Return what decides the needs of a request; None if that is more than a few names and numbers."""
    members = [(name, getattr(request, name)) for name in request.model_fields_set - _SAME_NEEDS]
    kinds = frozenset([(name, value, type(value)) for name, value in members if type(value) in _PLAIN])
    texts = sum(len(value) for _, value in members if isinstance(value, str))
    if len(kinds) < len(members) or texts > SHORT_TEXT or encoder is not ENCODERS.get(encoder.media_type):
        return None
    return encoder.media_type, settings.max_steps, settings.max_nfe, settings.max_answer_bytes, kinds


def _remember(model: ModelVersion, key: Hashable, needs: _Needs) -> None:
    recent = _RECENT.setdefault(model, {})
    if len(recent) >= _MAX_RECENT:
        recent.clear()
    recent[key] = needs


def _needed(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder
) -> tuple[SampleRequest, ModelVersion, Plan, _Needs]:
    """Return a request with a solver named, its model with a size for each free axis, its plan and what it needs.

    Raises:
        ProblemError: as in `validate_sample`.
    """
    t_span = span_of(request, model)
    if t_span[0] != 0 and request.x0 is None and request.start_time is None:
        raise invalid(
            "x0", f"t_span starts at {t_span[0]:g}, where there is no noise to draw; give x0, the states to start from"
        )
    if request.x0 is not None and request.noise_scale != 1:
        raise invalid("noise_scale", "noise_scale is for the noise of a seed, and x0 was given; leave one of them out")
    checked, model = sized(request, model, request.num_samples, {"x0": (request.x0, model.card.event_shape)})
    check_form(request, model, encoder)
    request, choice, plan = plan_of(request, model, t_span, settings)
    save_at = None if request.save_at is None else times_of(request, "save_at", plan)
    if request.log_prob:
        check_transitions(plan)
    max_bytes = response_bytes(request, model, plan, encoder)
    check_size(request, max_bytes, encoder, settings.max_answer_bytes)
    memory = memory_bytes(request, model, plan, encoder, max_bytes, checked)
    return request, model, plan, _Needs(checked, choice, ref(plan), save_at, max_bytes, memory, request.start_time)


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
    **others: Any,
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
        others: other fields of `Job`.
    """
    conditions, negative = checked.conditions(), checked.negatives()
    return Job(
        model=model.name,
        version=model.version,
        plan=plan,
        num_samples=num_samples,
        conditions=conditions if lanes_of is None else repeated(conditions, lanes_of),
        guidance=checked.guidance,
        negative=negative if lanes_of is None else repeated(negative, lanes_of),
        own=checked.owned(),
        sizes=model.sizes,
        deadline=deadline,
        trace=trace,
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, num_samples * kept_steps(plan, trace)),
        **others,
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
    return secrets.randbelow(DRAWN_LIMIT) if seed is None else seed


def deadline_of(request: Subject, settings: Settings) -> float:
    """Return the deadline of a request, on the clock of `time.monotonic`."""
    return request.came + (request.timeout_s or settings.timeout_s)


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


def start_of(x0: Any, num_samples: int, model: ModelVersion) -> torch.Tensor | None:
    """Return start states as a tensor (num_samples, *event_shape) in the model's dtype; None if none are given.

    Raises:
        ProblemError: 422 for another shape, or for numbers that are not finite in that dtype.
    """
    return None if x0 is None else to_array(x0, (num_samples, *model.event_shape), model.dtype)
