"""Sizes: upper bounds on the bytes of a response and the memory of a request, known before any work."""

import math
from collections.abc import Callable, Mapping, Sequence

import orjson

from models.pictures import PictureError, TooManyError
from service.errors import Kind, ProblemError, invalid
from service.ledger import Hold
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions
from service.requests.known import known_bytes
from service.requests.schemas import SampleRequest
from service.responses.arrays import ENCODERS, Encoder
from service.settings import Settings
from solvers.plan import Plan

_HEAD = 6_000
"""Bytes of the names, numbers and texts around the arrays, including the quantiles of the steps."""

_REQUEST = 8_000
"""Bytes of the members `request` and `environment`."""

_BYTES_PER_TIME = 26
_BYTES_PER_EVENT = 120
_BYTES_PER_SAMPLE = 128  # bytes of memory: its t, calls and status, and room to gather them
_BYTES_PER_STEP = 80  # bytes of memory: one attempted step kept, and its entry in the trace
_MAX_LANES = 8_192  # lanes that run at a time; saved states are kept until some of them end
_BYTES_PER_SAVED_STATE = 32  # bytes of memory: the lane and the time of a saved state
_LIKELY_STEPS = 20  # attempted steps of a sample under error control, before any was measured


def check_size(field: str, what: str, max_bytes: int, encoder: Encoder, settings: Settings, advice: str) -> None:
    """Refuse a request if the upper bound on its response is over the limit.

    Args:
        field: at fault.
        what: the request in words, as in "num_samples = 5".
        max_bytes: the bound.
        encoder: the format.
        settings: the limits.
        advice: what to do.

    Raises:
        ProblemError: 422 with the predicted and the allowed number of bytes.
    """
    limit = settings.max_answer_bytes
    if max_bytes > limit:
        message = (
            f"{what} may take {max_bytes:,} bytes as {encoder.media_type}, over the limit of {limit:,} of this "
            f"service; {advice}"
        )
        raise invalid(field, message, predicted_bytes=max_bytes, limit_bytes=limit)


def check_arrays_size(
    member: str, shapes: Sequence[Sequence[int]], dtype: str, plan: Plan, encoder: Encoder, settings: Settings
) -> int:
    """Refuse a request if the upper bound on its response of arrays is over the limit.

    Args:
        member: the field to reduce.
        shapes: shapes of the arrays; the first axis counts samples.
        dtype: the largest dtype.
        plan: the compiled solver, described in the response.
        encoder: the format.
        settings: the limits.

    Returns:
        Bytes of memory that the response takes while it is sent.

    Raises:
        ProblemError: 422 with the predicted and the allowed number of bytes.
    """
    arrays = sum(encoder.array_bytes(shape, dtype) for shape in shapes)
    predicted = arrays + _head_bytes(plan.settings) + shapes[0][0] * encoder.bytes_per_sample
    check_size(member, "the response", predicted, encoder, settings, f"send or ask for fewer {member}")
    return predicted if encoder.whole else 0


def check_format(request: SampleRequest, model: ModelVersion, encoder: Encoder) -> None:
    """Refuse samples that the format cannot represent, such as vectors of 64 numbers as a picture.

    Raises:
        ProblemError: 406 for samples of this shape, 422 for more of them than fit into a picture.
    """
    if encoder.check is None:
        return
    shape = model.data_shape if request.decode else model.event_shape
    try:
        encoder.check(request.num_samples, shape)
    except TooManyError as error:
        raise invalid("num_samples", str(error)) from None
    except PictureError as error:
        offered = [media for media, other in ENCODERS.items() if other.check is None]
        detail = f"{encoder.media_type} of model {model.name!r}: {error}"
        raise ProblemError(Kind.NOT_ACCEPTABLE, detail, offered=offered) from None


def response_bytes(request: SampleRequest, model: ModelVersion, plan: Plan, encoder: Encoder) -> int:
    """Return an upper bound on the bytes of the response: states, trace, and the report of each sample.

    For a stream this covers all events except progress.
    """
    shape = model.data_shape if request.decode else model.event_shape
    n, m = request.num_samples, request.saved_times
    dtype = model.card.data_dtype if request.decode else model.card.dtype
    if encoder.max_bytes is not None:
        return encoder.max_bytes(n, shape)
    states = encoder.array_bytes((n, *shape), dtype)
    head = _head_bytes(plan.settings) + m * _BYTES_PER_TIME
    if m:
        states += encoder.array_bytes((n, m, *shape), dtype)
    if request.log_prob:
        states += encoder.array_bytes((n, plan.max_attempts), "float64")
    if encoder.followed:
        head *= 2  # the first event of a stream has a head too
        states += encoder.array_bytes((m, n, *shape), dtype) + m * _BYTES_PER_EVENT
    lanes = n if request.trace == "full" else 1
    entries = 0 if request.trace == "none" else plan.max_attempts * lanes
    return _REQUEST + head + states + entries * encoder.bytes_per_step + n * encoder.bytes_per_sample


def _head_bytes(settings: Mapping[str, object]) -> int:
    """Return an upper bound on the bytes of the head; the solver's `settings` may hold a long grid."""
    return _HEAD + len(orjson.dumps(settings))


def kept_steps(plan: Plan, trace: str) -> int:
    """Return how many attempted steps of a sample are kept: the maximum for a full trace, else a likely number."""
    if trace == "full":
        return plan.max_attempts
    return min(plan.max_attempts, _LIKELY_STEPS) if plan.adaptive else 0


def lanes_bytes(
    model: ModelVersion,
    lanes: int,
    width: int,
    checked: CheckedConditions | None = None,
    *,
    saved: int = 0,
    start: bool = False,
    constants: int = 0,
    plan: Plan | None = None,
    trace: str = "none",
) -> int:
    """Return the bytes of memory that a job takes.

    Args:
        model: the model of the lanes.
        lanes: number of lanes.
        width: numbers per state.
        checked: conditions and guidance of the lanes; None if counted elsewhere.
        saved: number of saved states per lane.
        start: whether start states are kept too.
        constants: additional numbers per lane.
        plan, trace: the compiled solver, and which of its attempted steps are kept; None if counted elsewhere.
    """
    steps = 0 if plan is None else kept_steps(plan, trace)
    numbers = width * (1 + saved + start) + 2 * constants  # twice: in the job, and in the engine's table
    size = model.dtype.itemsize
    pending = min(lanes, _MAX_LANES) * saved * (width * size + _BYTES_PER_SAVED_STATE)
    checked = checked or CheckedConditions()
    return (
        lanes * (numbers * size + checked.bytes_per_sample + _BYTES_PER_SAMPLE + steps * _BYTES_PER_STEP)
        + pending
        + checked.bytes
    )


def memory_bytes(
    request: SampleRequest,
    model: ModelVersion,
    plan: Plan,
    encoder: Encoder,
    max_bytes: int,
    checked: CheckedConditions,
) -> int:
    """Return the bytes of memory that a request holds until its response, of at most `max_bytes`, is sent."""
    n, saved = request.num_samples, request.saved_times
    needed = lanes_bytes(
        model,
        n,
        math.prod(model.event_shape),
        checked,
        saved=saved,
        start=request.x0 is not None,
        plan=plan,
        trace=request.trace,
    )
    if request.x0 is not None:
        needed += doubles_bytes(n, model.event_shape)
    if request.known is not None:
        needed += known_bytes(request.known, n, model, request.decode)
    if request.log_prob:
        needed += 8 * plan.max_attempts * (n + math.prod(model.event_shape))
    if request.decode and not model.plain:
        needed += n * (1 + saved) * math.prod(model.data_shape) * model.dtype.itemsize
    return needed + (max_bytes if encoder.whole else 0)


def doubles_bytes(n: int, shape: Sequence[int]) -> int:
    """Return the bytes of n states as doubles, which lists of numbers are before they get the model's dtype."""
    return 8 * n * math.prod(shape)


def logged_beyond(hold: Hold, steps: int) -> Callable[[int], None]:
    """Return a function that counts attempted steps as they are kept and reserves memory for those beyond `steps`."""
    left = steps

    def logged(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            hold.grow(-left * _BYTES_PER_STEP)
            left = 0

    return logged
