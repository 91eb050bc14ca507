"""Conditions and guidance of a request: checked before anything is allocated, then converted to tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.condition_values import Distinct, NamedConditionError, Values
from models.conditions import ONE, ConditionError, NamedConditions
from models.guidance import NO_NULL, Guidance, Term, guidance_of
from models.shapes import AxisSizes
from service.errors import ProblemError, invalid
from service.registry.version import ModelVersion
from service.requests.schemas import GuidanceRequest, Subject

_MAX_WEIGHTS, _ROUNDING = 1e4, 1e-6
"""Sum of the weights of guidance in size, and how far their sum may be from 1 for each unit of that."""

_INDEX_BYTES = 8  # bytes of a sample's index into the conditions


@dataclass(frozen=True)
class CheckedConditions:
    """The conditions and guidance of the samples of a request.

    Attributes:
        guidance: the combination of velocities, or None.
        bytes: memory of the conditions, both in the job and in the engine's table.
        bytes_per_sample: additional bytes of memory per sample.
        values, negative: the conditions, and those that replace nulls; None if there are none.
    """

    guidance: Guidance | None = None
    bytes: int = 0
    bytes_per_sample: int = 0
    values: Values | None = None
    negative: Values | None = None

    def conditions(self) -> Mapping[str, Distinct] | None:
        """Return the conditions by name; None for an unconditional model.

        Raises:
            ProblemError: 422 for a value of another dtype, not finite or out of range.
        """
        return None if self.values is None else _tensors(self.values, "conditions")

    def negatives(self) -> Mapping[str, Distinct] | None:
        """Return the negative conditions by name; errors as for the others."""
        return None if self.negative is None else _tensors(self.negative, "negative")


def check_conditions(request: Subject, model: ModelVersion, samples: int, sizes: AxisSizes) -> CheckedConditions:
    """Check the names and shapes of the conditions of a request, and its guidance.

    Args:
        request: the parsed body.
        model: the requested model.
        samples: number of samples.
        sizes: the known sizes of the free axes; those of the conditions are added.

    Raises:
        ProblemError: 422 for anything that the model does not accept.
    """
    takes = model.conditioning
    if takes is None:
        for name in ("condition", "conditions", "negative", "guidance"):
            if getattr(request, name) is not None:
                raise invalid(name, f"{name} was given, but model {model.name!r} is unconditional; leave {name} out")
        return CheckedConditions()
    positive = _positive(request, takes)
    if request.guidance is not None and not positive:
        raise invalid("guidance", "guidance was given without a condition; give both, or leave guidance out")
    guidance = _guidance(request, takes)
    if not positive and takes.single is not None and takes.single.nullable and takes.single.default is None:
        return CheckedConditions(bytes_per_sample=_INDEX_BYTES)
    try:
        values = Values(takes, positive, samples, model.dtype, sizes)
    except ConditionError as error:
        raise _problem(error, "conditions") from None
    negative = _negative(request, takes, guidance, sizes, samples, model)
    rows = values.bytes + (0 if negative is None else negative.bytes)
    variants = 1 if guidance is None else 1 + len(guidance.terms)
    max_rows = max(values.max_rows, 1 if negative is None else negative.max_rows)
    results = variants * max_rows * _prelude_bytes(model, sizes.settle())
    per_sample = _INDEX_BYTES * variants * len(takes.inputs)
    return CheckedConditions(guidance, 2 * rows + results, per_sample, values, negative)


def refuse_corrections(checked: CheckedConditions) -> None:
    """Refuse guidance that is not a weighted sum, since its derivatives are not the sum of those of its terms.

    Raises:
        ProblemError: 422.
    """
    if checked.guidance is not None and checked.guidance.corrected:
        name = "projection" if checked.guidance.projection else "rescale"
        raise invalid("guidance", f"guidance.{name} is for samples, encode and replay; leave it out here")


def _prelude_bytes(model: ModelVersion, sizes: Mapping[str, int]) -> int:
    """Return the bytes of one row of the prelude's results, both in the job and in the engine's table."""
    prelude, takes = model.card.prelude, model.card.conditioning
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
        return {name: value for name, value in named.items() if value is not None}
    if request.condition is None:
        return {}
    return {_only(takes, "condition"): request.condition}


def _only(takes: NamedConditions, field: str) -> str:
    names = takes.in_requests
    if len(names) > 1:
        raise invalid(field, f"this model has the conditions {', '.join(names)}; give them by name, in conditions")
    return next(iter(names))


def _guidance(request: Subject, takes: NamedConditions) -> Guidance | None:
    requested = request.guidance
    if requested is None:
        return None
    null = takes.droppable(request.negative if isinstance(request.negative, dict) else ())
    if not null:
        raise invalid("guidance", NO_NULL.format("; give negative conditions, or "))
    if not isinstance(requested, GuidanceRequest):
        return guidance_of(float(requested), null)
    if (requested.terms is None) == (requested.strength is None):
        raise invalid("guidance", "guidance needs terms or strength, and not both")
    if requested.terms is None:
        terms: Sequence[Term] = guidance_of(float(requested.strength or 0.0), null).terms
    else:
        terms = [
            Term(float(term.weight), _dropped(term.condition, term.drop, takes.in_requests, null, k))
            for k, term in enumerate(requested.terms)
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
    if guidance.corrected and guidance.whole is None:
        name = "projection" if guidance.projection else "rescale"
        raise invalid("guidance", f"guidance.{name} compares with a term with all conditions; add one, or leave it out")
    return guidance


def _dropped(
    condition: str | None, drop: Sequence[str] | None, names: Sequence[str], null: Sequence[str], k: int
) -> frozenset[str]:
    """Return the conditions that a term drops.

    Args:
        condition, drop: the members of the term.
        names: the names of all conditions.
        null: names of the conditions that "null" drops.
        k: index of the term.
    """
    if (condition is None) == (drop is None):
        raise invalid("guidance", f"guidance.terms[{k}] needs condition (all or null) or drop, and not both")
    unknown = sorted(set(drop or ()) - set(names))
    if unknown:
        raise invalid("guidance", f"guidance.terms[{k}] drops {unknown[0][:60]!r}; this model has {', '.join(names)}")
    return frozenset(() if condition == "all" else null if condition == "null" else drop or ())


def _negative(
    request: Subject,
    takes: NamedConditions,
    guidance: Guidance | None,
    sizes: AxisSizes,
    samples: int,
    model: ModelVersion,
) -> Values | None:
    """Return the conditions that replace nulls; refuse a request that lacks one that guidance needs."""
    requested = request.negative
    needed = frozenset[str]() if guidance is None else frozenset().union(*(term.without for term in guidance.terms))
    if requested is not None and not needed:
        raise invalid("negative", "negative was given, and no term of guidance replaces a condition; give guidance")
    members = (
        {} if requested is None else requested if isinstance(requested, dict) else {_only(takes, "negative"): requested}
    )
    for name in takes.inputs:
        if name in needed and name not in members and name not in takes.droppable():
            raise invalid("guidance", NO_NULL.format(f" for {name!r}; give a negative one, or "))
    if not members:
        return None
    try:
        return Values(takes, members, samples, model.dtype, sizes, partial=True)
    except ConditionError as error:
        raise _problem(error, "negative") from None


def _tensors(values: Values, field: str) -> Mapping[str, Distinct]:
    try:
        return values.tensors()
    except (ConditionError, OverflowError) as error:
        raise _problem(error, field) from None


def _problem(error: Exception, field: str) -> ProblemError:
    if isinstance(error, NamedConditionError) and error.name != ONE:
        return invalid(f"{field}.{error.name[:60]}", str(error))
    return invalid("condition" if field == "conditions" else field, str(error))
