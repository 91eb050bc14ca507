"""Requests alike: most differ from an earlier one in their seed, their place in its stream and their time limit only.

What follows from the rest is the same for all of them: that their fields are valid, the solver they take, how much
memory they need, and most of their response. So it is found once, for the first request of a kind.
"""

from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from selection.choice import Choice
from service.http.context import Context
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions
from service.requests.parsing import check, json_members
from service.requests.schemas import INTEGER_LIMIT, SampleRequest
from service.responses.arrays import Encoder
from solvers.plan import Plan

MAX_BYTES = 1024
"""A larger body is looked at each time."""

_MAX_KINDS = 1024
_FOREVER_S = 1e9


@dataclass(eq=False)
class Needs:
    """What requests alike need of one version of their model; it keeps neither version nor compiled solver in memory.

    Attributes:
        model, plan: the version and the compiled solver.
        encoder: the format of the response.
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
    encoder: Encoder
    checked: CheckedConditions
    choice: Choice | None
    save_at: NDArray[np.float64] | None
    max_bytes: int
    memory: int
    start_time: float | None
    constant: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class RequestKind:
    """Requests alike: the first of them, and what they need of the version that answered last."""

    request: SampleRequest
    needs: Needs | None = None


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
        if request.budget is not None:  # what it chooses depends on the load
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
