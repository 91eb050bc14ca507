"""The shape of a request's samples: sizes of its model's free axes, given in it or inferred from its arrays."""

from collections.abc import Mapping
from typing import Any

from models.arrays import outline
from models.messages import shown
from models.shapes import AxisSizes, Shape, ShapeError, described, free_axes, matched
from service.errors import invalid
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, check_conditions
from service.requests.schemas import Subject

_NO_ARRAYS: Mapping[str, tuple[Any, Shape]] = {}


def sized(
    request: Subject, model: ModelVersion, samples: int, arrays: Mapping[str, tuple[Any, Shape]] = _NO_ARRAYS
) -> tuple[CheckedConditions, ModelVersion]:
    """Return the conditions and guidance of a request, and its model with a size for each free axis.

    Args:
        request: the parsed body.
        model: the requested model.
        samples: number of samples.
        arrays: fields with one row per sample, each with the shape of a row; None for a field that is not given.

    Raises:
        ProblemError: 422 for a size that is missing, not allowed, of an unknown axis, or contradicts another; and
            as in `check_conditions`.
    """
    sizes = AxisSizes(model.card.bounds)
    if request.shape is not None:
        _note_requested(request.shape, model, sizes)
    for field, (value, shape) in arrays.items():
        _note_array(field, value, shape, sizes)
    checked = check_conditions(request, model, samples, sizes)
    needed, conditions = free_axes(model.card.event_shape), model.card.conditions
    sources = {axis: [name for name, entry in conditions.items() if axis in entry.free] for axis in needed}
    also = {axis: f"the condition {names[0]}, which has it" for axis, names in sources.items() if names}
    try:
        settled = sizes.settle(needed, also)
    except ShapeError as error:
        raise invalid(f"shape.{error.axis}", f"model {model.name!r}: {error}") from None
    return checked, model.of_sizes(settled)


def _note_requested(requested: Any, model: ModelVersion, sizes: AxisSizes) -> None:
    """Note the sizes in the member `shape`."""
    if not isinstance(requested, dict):
        raise invalid(
            "shape", f'shape is {shown(requested)}; it must be an object with a size for each axis: {{"T": 344}}'
        )
    for axis, size in requested.items():
        field = f"shape.{axis[:60]}"
        if axis not in sizes.axes:
            shape = described(model.card.event_shape, model.card.axes)
            axes = f"those it has are {', '.join(sizes.axes)}" if sizes.axes else f"its shape is {shape}"
            raise invalid(field, f"model {model.name!r} has no free axis {axis[:60]!r}; {axes}; leave it out")
        if type(size) is not int:
            allowed = sizes.axes[axis].describe()
            raise invalid(field, f"shape.{axis} is {shown(size)}, expected an integer, {allowed}")
        _note(sizes, axis, size, "shape", field)


def _note_array(field: str, value: Any, shape: Shape, sizes: AxisSizes) -> None:
    """Note the sizes of an array if its shape fits otherwise; if not, the error is raised where the array is read."""
    if value is not None:
        lengths = getattr(value, "shape", None) or outline(value)
        for axis, size in (matched(shape, lengths[1:]) or {}).items():
            _note(sizes, axis, size, field, field)


def _note(sizes: AxisSizes, axis: str, size: int, source: str, field: str) -> None:
    try:
        sizes.note(axis, size, source)
    except ShapeError as error:
        raise invalid(field, str(error)) from None
