"""How large an answer can become, and how much memory a request takes, known before any work."""

import math
from collections.abc import Callable, Mapping

import orjson

from models.pictures import PictureError, TooManyError
from service.errors import Kind, ProblemError, invalid
from service.ledger import Hold
from service.registry.served import Served
from service.requests.schemas import SampleRequest
from service.responses.encoders import ENCODERS, Encoder
from solvers.plan import Plan

_HEAD = 6_000  # bytes of the names, numbers and texts around what is large, quantiles of the steps included
_A_TIME = 26
_AN_EVENT = 120
_A_SAMPLE = 128  # bytes of memory: its t, calls and status, and room to put them together
_A_STEP = 80  # bytes of memory: an attempt as it is kept, and as an entry of the trace
_MOST_LANES = 8_192  # that run at the same time, and keep what they save until some of them end
_A_SAVED = 32  # bytes of memory: whose state it is and at which time, while it is kept so
_LIKELY_STEPS = 20  # attempts of a sample under error control, before any is known


def check_answer_size(request: SampleRequest, model: Served, solve: Plan, encoder: Encoder, limit: int) -> None:
    """Refuse an answer that may be larger than the limit, by the most it can hold.

    Raises:
        ProblemError: 422 with the predicted and the allowed number of bytes.
    """
    predicted = predict_bytes(request, model, solve, encoder)
    if predicted > limit:
        trace = f" with trace {request.trace!r}" if request.trace == "full" else ""
        advice = "ask for fewer samples and page with first_index, save and trace less, or lower max_nfe"
        message = (
            f"num_samples = {request.num_samples}{trace} may take {predicted:,} bytes as {encoder.media_type}, "
            f"over the limit of {limit:,} of this service; {advice}"
        )
        raise invalid("num_samples", message, predicted_bytes=predicted, limit_bytes=limit)


def check_form(request: SampleRequest, model: Served, encoder: Encoder) -> None:
    """Refuse samples that the format cannot hold, like vectors of 64 numbers as a picture.

    Raises:
        ProblemError: 406 where the format cannot hold samples of this shape, 422 where it cannot hold so many.
    """
    if encoder.check is None:
        return
    shape = model.card.data_shape if request.decode else model.event_shape
    try:
        encoder.check(request.num_samples, shape)
    except TooManyError as error:
        raise invalid("num_samples", str(error)) from None
    except PictureError as error:
        others = [media for media, other in ENCODERS.items() if other.check is None]
        detail = f"{encoder.media_type} of model {model.name!r}: {error}"
        raise ProblemError(Kind.NOT_ACCEPTABLE, detail, offered=others) from None


def predict_bytes(request: SampleRequest, model: Served, solve: Plan, encoder: Encoder) -> int:
    """Return the most bytes that the answer can take: states, trace, and what is reported for each sample.

    Of a followed request these are all events but those of its progress on the way.
    """
    shape = model.card.data_shape if request.decode else model.event_shape
    n, m = request.num_samples, len(request.save_at or ())
    dtype = model.card.data_dtype if request.decode else model.card.dtype
    if encoder.most_bytes is not None:
        return encoder.most_bytes(n, shape)
    states = encoder.array_bytes((n, *shape), dtype)
    head = head_bytes(solve.settings) + m * _A_TIME
    if m:
        states += encoder.array_bytes((n, m, *shape), dtype)
    if encoder.followed:
        head *= 2  # the first event has one too
        states += encoder.array_bytes((m, n, *shape), dtype) + m * _AN_EVENT
    lanes = n if request.trace == "full" else 1
    entries = 0 if request.trace == "none" else solve.most_steps * lanes
    return head + states + entries * encoder.bytes_a_step + n * encoder.bytes_a_sample


def head_bytes(settings: Mapping[str, object]) -> int:
    """Return the most bytes of what is neither large nor of a sample; `settings` of the solver may have a long grid."""
    return _HEAD + len(orjson.dumps(settings))


def kept_steps(solve: Plan, trace: str) -> int:
    """Return how many attempts of a sample are kept: the most there can be for a full trace, else a likely number."""
    if trace == "full":
        return solve.most_steps
    return min(solve.most_steps, _LIKELY_STEPS) if solve.adaptive else 0


def lanes_bytes(
    model: Served, lanes: int, width: int, *, saved: int = 0, given: bool = False, constants: int = 0, steps: int = 0
) -> int:
    """Return the bytes of memory that a job takes.

    Args:
        model: whose lanes they are; each may have a condition.
        lanes: how many there are.
        width: numbers of a state.
        saved: states that are kept of each on the way.
        given: whether the states to start from are kept too.
        constants: numbers that ride along with each.
        steps: attempts that are kept of each.
    """
    takes = model.card.condition
    condition = 0 if takes is None else takes.examples(1, model.dtype).nbytes
    numbers = width * (1 + saved + given) + 2 * constants  # twice: with the job, and in the table of the engine
    size = model.dtype.itemsize
    kept = min(lanes, _MOST_LANES) * saved * (width * size + _A_SAVED)
    return lanes * (numbers * size + 2 * condition + _A_SAMPLE + steps * _A_STEP) + kept


def memory_bytes(request: SampleRequest, model: Served, solve: Plan, encoder: Encoder) -> int:
    """Return the bytes of memory that a request takes until its answer is out."""
    n, saved = request.num_samples, len(request.save_at or ())
    needed = lanes_bytes(
        model,
        n,
        math.prod(model.event_shape),
        saved=saved,
        given=request.x0 is not None,
        steps=kept_steps(solve, request.trace),
    )
    if request.decode and not model.plain:
        needed += n * (1 + saved) * math.prod(model.card.data_shape) * model.dtype.itemsize
    return needed + (predict_bytes(request, model, solve, encoder) if encoder.whole else 0)


def logged_beyond(hold: Hold | None, steps: int) -> Callable[[int], None]:
    """Return what counts attempts as they are kept, and sets memory aside for those beyond `steps`."""
    left = steps

    def logged(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0 and hold is not None:
            hold.grow(-left * _A_STEP)
            left = 0

    return logged
