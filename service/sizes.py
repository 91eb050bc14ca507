"""How large an answer can become, known before any work."""

import math

from models.pictures import PictureError, TooManyError
from service.encoders import ENCODERS, Encoder
from service.errors import Kind, ProblemError, invalid
from service.schemas import SampleRequest
from service.served import Served
from solvers.plan import Adaptive, Plan


def check_answer_size(
    request: SampleRequest, model: Served, solve: Plan | Adaptive, encoder: Encoder, limit: int
) -> None:
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


def predict_bytes(request: SampleRequest, model: Served, solve: Plan | Adaptive, encoder: Encoder) -> int:
    """Return the most bytes that the answer can take: states, trace, and what is reported for each sample."""
    shape = model.card.data_shape if request.decode else model.event_shape
    if encoder.most_bytes is not None:
        return encoder.most_bytes(request.num_samples, shape)
    states = request.num_samples * (1 + len(request.save_at or ()))
    dtype = model.card.data_dtype if request.decode else model.card.dtype
    numbers = states * math.prod(shape) * encoder.bytes_a_number[dtype]
    lanes = request.num_samples if request.trace == "full" else 1
    entries = 0 if request.trace == "none" else attempts(solve) * lanes
    return numbers + entries * encoder.bytes_a_step + request.num_samples * encoder.bytes_a_sample


def attempts(solve: Plan | Adaptive) -> int:
    """Return the most steps that one sample can attempt."""
    if isinstance(solve, Plan):
        return len(solve.times) - 1
    return max(1, solve.max_nfe // max(1, solve.rows.slots - 1))
