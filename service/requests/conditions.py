"""Conditions, guidance and sizes of a request: checked before anything is allocated, then converted to tensors."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.arrays import outline
from models.condition_values import Distinct, Values
from models.conditions import ONE, ConditionError, NamedConditions
from models.guidance import NO_NULL, Guidance, Term, guidance_of
from models.messages import shown
from models.shapes import AxisSizes, Shape, ShapeError, described, free_axes, matched
from service.errors import ProblemError, invalid
from service.registry.version import ModelVersion
from service.requests.schemas import GuidanceRequest, Subject, TermRequest

_MAX_WEIGHTS, _ROUNDING = 1e4, 1e-6
"""Sum of the weights of guidance in size, and how far their sum may be from 1 for each unit of that."""

_INDEX_BYTES = 8  # bytes of a sample's index into the conditions

_Tensors = Mapping[str, Distinct]


@dataclass(frozen=True)
class CheckedConditions:
    """The conditions and guidance of the samples of a request.

    Attributes:
        guidance: the combination of velocities, or None.
        bytes: memory of the conditions, both in the job and in the engine's table.
        bytes_per_sample: additional bytes of memory per sample.
        values, negative: the conditions, and those that replace nulls; None if there are none.
        own: for each term of guidance its own conditions; None if it has none.
    """

    guidance: Guidance | None = None
    bytes: int = 0
    bytes_per_sample: int = 0
    values: Values | None = None
    negative: Values | None = None
    own: Sequence[Values | None] = ()

    def tensors(self) -> tuple[_Tensors | None, _Tensors | None, list[_Tensors]]:
        """Return `values`, `negative` and `own` as tensors by name, as a `Job` takes them.

        Raises:
            ProblemError: 422 for a value of another dtype, not finite or out of range.
        """
        values, negative = _tensors(self.values, "conditions"), _tensors(self.negative, "negative")
        own = [_tensors(own, f"guidance.terms.{k}.conditions") or {} for k, own in enumerate(self.own)]
        return values, negative, own


def sized(
    request: Subject, model: ModelVersion, samples: int, field: str = "", rows: Any = None, shape: Shape = ()
) -> tuple[CheckedConditions, ModelVersion]:
    """Return the conditions and guidance of a request, and its model with a size for each free axis.

    If a field has one row per sample, `rows` is its value, and `shape` that of a row.

    Raises:
        ProblemError: 422 for a size that is missing, not allowed, of an unknown axis, or contradicts another; and for
            conditions or guidance that the model does not accept.
    """
    sizes = AxisSizes(model.card.bounds)
    if request.shape is not None:
        _note_requested(request.shape, model, sizes)
    if rows is not None:
        lengths = getattr(rows, "shape", None) or outline(rows)
        # if its shape does not fit otherwise, the error is raised where it is read
        for axis, size in (matched(shape, lengths[1:]) or {}).items():
            _note(sizes, axis, size, field, field)
    checked = _check_conditions(request, model, samples, sizes)
    needed, conditions = free_axes(model.card.event_shape), model.card.conditions
    sources = {axis: [name for name, entry in conditions.items() if axis in entry.free] for axis in needed}
    also = {axis: f"the condition {names[0]}, which has it" for axis, names in sources.items() if names}
    try:
        settled = sizes.settle(needed, also)
    except ShapeError as error:
        raise invalid(f"shape.{error.axis}", f"model {model.name!r}: {error}") from None
    return checked, model.of_sizes(settled)


def _check_conditions(request: Subject, model: ModelVersion, samples: int, sizes: AxisSizes) -> CheckedConditions:
    """Check the names and shapes of the conditions of a request, and its guidance; add the sizes of their free axes."""
    takes = model.request_conditions
    if takes is None:
        for name in ("condition", "conditions", "negative", "guidance"):
            if getattr(request, name) is not None:
                raise invalid(name, f"{name} was given, but model {model.name!r} is unconditional; leave {name} out")
        return CheckedConditions()
    positive = _positive(request, takes)
    owned = _owned(request, takes)
    if request.guidance is not None and not positive and not any(owned):
        raise invalid("guidance", "guidance was given without a condition; give both, or leave guidance out")
    replacing = _members(request.negative, takes, "negative")
    guidance = _guidance(request, takes, owned, replacing)
    single = None if positive or guidance is not None else takes.single
    if single is not None and single.nullable and single.default is None:
        return CheckedConditions(bytes_per_sample=_INDEX_BYTES)

    def checked(field: str, members: Mapping[str, Any], rows: int, optional: Collection[str], what: str) -> Values:
        try:
            return Values(takes, members, rows, model.dtype, sizes, optional, what)
        except ConditionError as error:
            raise _problem(error, field) from None

    values = checked("conditions", positive, samples, _untaken(guidance, takes), "condition")
    own = [
        checked(f"guidance.terms.{k}.conditions", members, 1, takes.in_requests, f"guidance.terms[{k}]")
        if members
        else None
        for k, members in enumerate(owned)
    ]
    _check_negative(request, takes, guidance, replacing)
    negative = checked("negative", replacing, samples, takes.in_requests, "negative") if replacing else None
    groups = [group for group in (values, negative, *own) if group is not None]
    variants = 1 if guidance is None else 1 + len(guidance.terms)
    results = variants * max(group.max_rows for group in groups) * _prelude_bytes(model, sizes.settle())
    memory = 2 * sum(group.bytes for group in groups) + results
    per_sample = _INDEX_BYTES * variants * len(takes.entries)
    return CheckedConditions(guidance, memory, per_sample, values, negative, own)


def refuse_corrections(checked: CheckedConditions) -> None:
    """Refuse guidance that is not a weighted sum, since its derivatives are not the sum of those of its terms.

    Raises:
        ProblemError: 422.
    """
    if checked.guidance is not None and (name := checked.guidance.correction):
        raise invalid("guidance", f"guidance.{name} is for samples, encode and replay; leave it out here")


def _prelude_bytes(model: ModelVersion, sizes: Mapping[str, int]) -> int:
    """Return the bytes of one row of the prelude's results, both in the job and in the engine's table."""
    prelude, takes = model.card.prelude, model.card.network_conditions
    if prelude is None or takes is None:
        return 0
    outputs = [takes.sized(sizes).entries[name] for name in prelude.program.outputs]
    return 2 * sum(math.prod(entry.sizes) * entry.torch_dtype.itemsize for entry in outputs)


def _positive(request: Subject, takes: NamedConditions) -> dict[str, Any]:
    """Return the given conditions by name; `condition` is for models with a single condition."""
    named = request.conditions
    if named is not None and request.condition is not None:
        raise invalid("condition", "condition and conditions were both given; give all of them in conditions")
    if named is not None:
        if not isinstance(named, dict):
            raise invalid("conditions", "conditions must be an object: the name of each condition and its value")
        return _members(named, takes, "conditions")
    return {} if request.condition is None else {_only(takes, "condition"): request.condition}


def _only(takes: NamedConditions, field: str) -> str:
    names = takes.in_requests
    if len(names) > 1:
        raise invalid(field, f"this model has the conditions {', '.join(names)}; give them by name, in conditions")
    return next(iter(names))


def _owned(request: Subject, takes: NamedConditions) -> list[dict[str, Any]]:
    """Return the own conditions of each term of guidance by name."""
    terms = (request.guidance.terms or ()) if isinstance(request.guidance, GuidanceRequest) else ()
    return [_members(term.conditions, takes, f"guidance.terms.{k}.conditions") for k, term in enumerate(terms)]


def _members(value: Any, takes: NamedConditions, field: str) -> dict[str, Any]:
    """Return the conditions in a member by name; a model's only one may be given alone."""
    named = value if isinstance(value, dict) else {} if value is None else {_only(takes, field): value}
    return {name: value for name, value in named.items() if value is not None}


def _untaken(guidance: Guidance | None, takes: NamedConditions) -> frozenset[str]:
    """Return the conditions that no term of guidance takes from the request, which may leave them out."""
    if guidance is None or guidance.interval is not None:
        return frozenset()
    return frozenset(takes.in_requests).intersection(*(term.without | term.own for term in guidance.terms))


def _guidance(
    request: Subject, takes: NamedConditions, owned: Sequence[Mapping[str, Any]], negative: Mapping[str, Any]
) -> Guidance | None:
    requested = request.guidance
    if requested is None:
        return None
    null = takes.droppable(negative)
    if not null and not any(owned):
        raise invalid("guidance", NO_NULL.format("; give negative conditions, or "))
    if not isinstance(requested, GuidanceRequest):
        return guidance_of(float(requested), null)
    if (requested.terms is None) == (requested.strength is None):
        raise invalid("guidance", "guidance needs terms or strength, and not both")
    if requested.terms is None:
        terms: Sequence[Term] = guidance_of(float(requested.strength or 0.0), null).terms
    else:
        terms = [
            Term(float(term.weight), _dropped(term, takes.in_requests, null, k) - own.keys(), frozenset(own))
            for k, (term, own) in enumerate(zip(requested.terms, owned, strict=True))
        ]
        total, scale = math.fsum(term.weight for term in terms), sum(abs(term.weight) for term in terms)
        if scale > _MAX_WEIGHTS:
            raise invalid(
                "guidance",
                f"the weights of guidance.terms are {scale:g} in size together; rounding loses their sum beyond "
                f"{_MAX_WEIGHTS:g}",
            )
        if abs(total - 1.0) > _ROUNDING * scale:
            raise invalid(
                "guidance", f"the weights of guidance.terms sum to {total:g}; a velocity needs weights that sum to 1"
            )
    if requested.interval is not None and not requested.interval[0] < requested.interval[1]:
        raise invalid(
            "guidance", f"guidance.interval is {list(requested.interval)}; it must be two times, the lower first"
        )
    guidance = Guidance(tuple(terms), requested.interval, requested.projection, requested.rescale)
    if (name := guidance.correction) and guidance.whole is None:
        raise invalid("guidance", f"guidance.{name} compares with a term with all conditions; add one, or leave it out")
    return guidance


def _dropped(term: TermRequest, names: Sequence[str], null: Sequence[str], k: int) -> frozenset[str]:
    """Return the conditions that term k drops: of all `names`, those named; or with "null", those in `null`."""
    drop = term.drop or ()
    if (term.condition and drop) or not (term.condition or drop or term.conditions):
        raise invalid(
            "guidance",
            f"guidance.terms[{k}] needs condition (all or null) or drop, and not both; or conditions of its own",
        )
    if unknown := sorted(set(drop) - set(names)):
        raise invalid("guidance", f"guidance.terms[{k}] drops {unknown[0][:60]!r}; this model has {', '.join(names)}")
    if term.condition == "null" and not null:
        raise invalid("guidance", NO_NULL.format("; give negative conditions, or "))
    return frozenset(null if term.condition == "null" else drop)


def _check_negative(
    request: Subject, takes: NamedConditions, guidance: Guidance | None, negative: Mapping[str, Any]
) -> None:
    """Refuse a request without a negative condition that guidance needs, and one with some that it does not."""
    needed = frozenset[str]() if guidance is None else frozenset().union(*(term.without for term in guidance.terms))
    if request.negative is not None and not needed:
        raise invalid("negative", "negative was given, and no term of guidance replaces a condition; give guidance")
    for name in takes.entries:
        if name in needed and name not in takes.droppable(negative):
            raise invalid("guidance", NO_NULL.format(f" for {name!r}; give a negative one, or "))


def _tensors(values: Values | None, field: str) -> _Tensors | None:
    try:
        return None if values is None else values.tensors()
    except (ConditionError, OverflowError) as error:
        raise _problem(error, field) from None


def _problem(error: Exception, field: str) -> ProblemError:
    if isinstance(error, ConditionError) and error.name not in ("", ONE):
        return invalid(f"{field}.{error.name[:60]}", str(error))
    return invalid("condition" if field == "conditions" else field, str(error))


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


def _note(sizes: AxisSizes, axis: str, size: int, source: str, field: str) -> None:
    try:
        sizes.note(axis, size, source)
    except ShapeError as error:
        raise invalid(field, str(error)) from None
