"""Known values of a request: checked before anything is allocated, then converted to states."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.job import Operation
from models.arrays import NestedError, outline, to_floats
from models.decoder import InverseError
from models.forms.rows import RowCaller
from models.messages import shown
from service.errors import invalid
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, refuse_corrections
from service.requests.schemas import KnownRequest, SampleRequest
from service.requests.solver import refuse_average
from solvers.known_values import KnownValues, guided
from solvers.plan import Plan

GUIDED = Operation("guided", correction=guided, rows=3)
"""Samples that are guided: each row goes through the network, and forwards and backwards through it again."""

_NUMBERS = frozenset({int, float})

_REACHED = 1e-3
"""Most difference between a known value and that of the sample, as a share of one more than the value."""


def check_known(
    known: KnownRequest, request: SampleRequest, model: ModelVersion, plan: Plan, checked: CheckedConditions
) -> None:
    """Refuse known values that the rest of the request, or the model, does not go with; their shapes, too.

    Raises:
        ProblemError: 422 with the reason.
    """
    if request.log_prob:
        raise invalid("log_prob", "log_prob is for paths without known values, which change their steps; leave it out")
    start, end = plan.t_span
    if not start < end:
        raise invalid(
            "t_span", f"known values are for spans from noise to data, not from {start:g} to {end:g}; leave known out"
        )
    if (axis := model.card.centred) is not None:
        raise invalid(
            "known",
            f"model {model.name!r} has states of mean zero along axis {axis}, which known values would move; leave "
            "known out",
        )
    resample = plan.spec.resample
    if known.mode == "guided":
        refuse_average(model, "mode 'guided' corrects")
        refuse_corrections(checked)
        if plan.spec.noisy:
            raise invalid(
                "known.mode",
                f"known.mode is 'guided' with solver {plan.spec}, whose noise needs the score of the path, and the "
                "corrected velocity is not that of a path; use mode 'replace', or a solver without noise",
            )
    elif "max_weight" in known.model_fields_set:
        raise invalid("known.max_weight", "known.max_weight bounds mode 'guided'; leave it out, or use that mode")
    if resample > 1 and request.noise_scale != 1:
        raise invalid("noise_scale", f"resample = {resample} draws noise of scale 1; leave noise_scale out")
    _shape(known, request.num_samples, model, request.decode)


def known_bytes(known: KnownRequest, n: int, model: ModelVersion, decode: bool) -> int:
    """Return the bytes of memory of known values: as doubles, in the job, and with the lanes."""
    rows, width = _shape(known, n, model, decode)[0], math.prod(model.event_shape)
    return rows * width * (16 + 4 * model.dtype.itemsize) + 2 * n * width * model.dtype.itemsize


def known_of(known: KnownRequest, n: int, model: ModelVersion, decode: bool) -> KnownValues:
    """Return the known values of n samples as states; with `decode`, they are data.

    Raises:
        ProblemError: 422 for values that are not numbers, not finite where they are known, or not known anywhere; for
            weights outside [0, 1], and for a decoder without an inverse.
    """
    rows, *shape = _shape(known, n, model, decode)
    weights = _numbers("known.mask", known.mask, _NUMBERS | {bool})
    values = np.broadcast_to(_numbers("known.values", known.values, _NUMBERS), (rows, *shape))
    if not ((weights >= 0) & (weights <= 1)).all():
        raise invalid("known.mask", "known.mask holds a number that is not from 0 (unknown) to 1 (known)")
    if known.mode == "replace" and not np.isin(weights, (0, 1)).all():
        raise invalid(
            "known.mask", "known.mask holds a number between 0 and 1, which only mode 'guided' takes; use 0 or 1"
        )
    weights = np.broadcast_to(weights, values.shape)
    flat = weights.reshape(rows, -1)
    for wrong, what, advice in (
        ((flat == 0).all(axis=1), "nothing is known", "leave known out"),
        ((flat == 1).all(axis=1), "everything is known", "leave something to sample"),
    ):
        if wrong.any():
            which = "" if rows == 1 else f" of sample {int(wrong.argmax())}"
            raise invalid("known.mask", f"known.mask says that {what}{which}; {advice}")
    return KnownValues(*_states(values, weights, model, decode, known.mode == "guided"), known.max_weight)


def _states(
    values: NDArray[np.float64], weights: NDArray[np.float64], model: ModelVersion, decode: bool, guided: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return values (rows, *event), NaN where they are unknown, and the weights of guidance."""
    inside, data = weights > 0, decode and model.numberwise
    states = filled = torch.from_numpy(np.where(inside, values, 0.0)).to(model.data_dtype if data else model.dtype)
    if data and not model.plain:
        encode, _ = inverse_of(model, "known.values")
        with torch.inference_mode():
            states = encode(filled).to(model.dtype)
            if not guided:
                _check_reached(filled, model.decode(states), inside)
    shape = (len(values), *model.event_shape)
    states, mask = states.reshape(shape).clone(), torch.from_numpy(inside.reshape(shape))
    if not states[mask].isfinite().all():
        raise invalid(
            "known.values",
            "known.values holds a number that is not finite where known.mask says it is known; mask it out",
        )
    states[~mask] = math.nan
    return states, torch.from_numpy(weights.reshape(shape).copy()).to(model.dtype) if guided else None


def inverse_of(model: ModelVersion, field: str) -> tuple[RowCaller, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the inverse of a model's decoder, see `ModelVersion.inverse`.

    Raises:
        ProblemError: 422 about the field, for a decoder without an inverse.
    """
    try:
        return model.inverse
    except InverseError as error:
        raise invalid(
            field,
            f"data cannot be turned into states of model {model.name!r}: {error}; send states, with decode false",
        ) from None


def _check_reached(values: torch.Tensor, decoded: torch.Tensor, inside: NDArray[np.bool_]) -> None:
    """Refuse values that samples cannot have: where the data are constant, whole or bounded.

    Raises:
        ProblemError: 422 with the first of them, and what samples would have.
    """
    off = (decoded - values).abs() > _REACHED * (1 + values.abs())
    wrong = (off.numpy() & inside).nonzero()
    if len(wrong[0]):
        place = tuple(int(axis[0]) for axis in wrong)
        name = f"known.values{[*place[1:]] if len(values) == 1 else [*place]}"
        raise invalid(
            "known.values",
            f"{name} = {values[place]:g}, but samples of this model would have {decoded[place]:g} there, as its data "
            "are constant, whole or bounded; change the value, or mask it out",
        )


def _shape(known: KnownRequest, n: int, model: ModelVersion, decode: bool) -> tuple[int, ...]:
    """Return (rows, *shape): those of one sample, and 1 for all samples alike or one row for each.

    Raises:
        ProblemError: 422 for values of another shape, or a mask that does not broadcast to one.
    """
    data = decode and model.numberwise
    one, what = (tuple(model.data_shape), "data") if data else (tuple(model.event_shape), "states")
    expected = f"{list(one)} for all samples, or {[n, *one]} ({what} of model {model.name!r})"
    shape, mask = (
        value.shape if isinstance(value, np.ndarray) else outline(value) for value in (known.values, known.mask)
    )
    if shape not in (one, (n, *one)):
        raise invalid("known.values", f"known.values has the shape {list(shape)}; it must be {expected}")
    whole = None
    with contextlib.suppress(ValueError):
        whole = np.broadcast_shapes(shape, mask)
    if whole not in (one, (n, *one)):
        raise invalid("known.mask", f"known.mask has the shape {list(mask)}, which does not broadcast to {expected}")
    return (1, *one) if whole == one else whole


def _numbers(name: str, value: Any, kinds: frozenset[type]) -> NDArray[np.float64]:
    """Return an array as it was sent in npz, or nested lists of numbers of these types."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "b" and bool not in kinds:
            raise invalid(name, f"{name} holds booleans; it must hold numbers")
        return value.astype(np.float64)
    if not isinstance(value, list | tuple):
        raise invalid(name, f"{name} is {shown(value)}; it must be a list of numbers")
    try:
        return to_floats(value, outline(value), name, kinds=kinds)
    except NestedError as error:
        raise invalid(name, str(error)) from None
