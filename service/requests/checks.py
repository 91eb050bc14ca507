"""What all requests to solve share (limits, solver, condition, states), each refused by the name of its member."""

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.conditions import ConditionError
from service.errors import invalid
from service.registry.served import Served
from service.requests.arrays import to_array
from service.requests.schemas import SEED_LIMIT, Drawn, Solving
from service.settings import Settings
from solvers import resolve
from solvers.errors import SolverError
from solvers.grids import apart, snapped
from solvers.plan import Plan
from solvers.saving import check_save_at

Dtypes = Mapping[str, "np.dtype[Any]"]
NO_DTYPES: Dtypes = MappingProxyType({})
WHOLE = (0.0, 1.0)
"""Where models are defined."""


def check_limits(request: Solving, settings: Settings, **counts: int) -> None:
    """Refuse what is over a limit of the service; `counts` are numbers of things, by the member that asks for them.

    Raises:
        ProblemError: 422 with the value and the limit.
    """
    intervals = len(request.grid) - 1 if isinstance(request.grid, list) else 0
    limits = {"num_samples": settings.max_samples, "samples": settings.max_samples}
    limits |= {"save_at": settings.max_saved, "times": settings.max_saved}
    for name, value, limit in (
        *((name, count, limits[name]) for name, count in counts.items()),
        ("steps", request.steps or 0, settings.max_steps),
        ("grid", intervals, settings.max_steps),
        ("max_nfe", request.max_nfe, settings.max_nfe),
        ("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s),
    ):
        if value > limit:
            unit = {"grid": " intervals", "save_at": " times", "times": " times", "samples": " samples"}.get(name, "")
            raise invalid(name, f"{name} = {value}{unit} is over the limit of {limit} of this service; ask for less")


def check_indices(request: Drawn) -> None:
    """Refuse samples beyond the end of a seed.

    Raises:
        ProblemError: 422.
    """
    if request.first_index + request.num_samples > SEED_LIMIT:
        raise invalid(
            "first_index",
            f"first_index + num_samples = {request.first_index + request.num_samples} is over 2**63, the end of a seed",
        )


def seed_of(seed: int | None) -> int:
    """Return the seed, or draw one."""
    return secrets.randbelow(SEED_LIMIT) if seed is None else seed


def deadline_of(request: Solving, settings: Settings) -> float:
    """Return when the time limit passes, in `time.monotonic`."""
    return request.came + (request.timeout_s or settings.timeout_s)


def condition_of(request: Solving, model: Served, num_samples: int) -> torch.Tensor | None:
    """Return the condition as a tensor with one row a sample; None where the model does without.

    Raises:
        ProblemError: 422 for a condition or guidance that the model does not take.
    """
    takes = model.card.condition
    if takes is None:
        for name in ("condition", "guidance"):
            if getattr(request, name) is not None:
                raise invalid(name, f"{name} was given, but model {model.name!r} is unconditional; leave {name} out")
        return None
    try:
        if request.guidance is not None:
            if request.condition is None:
                raise invalid("guidance", "guidance was given without a condition; give both, or leave guidance out")
            if request.guidance != 1:
                takes.nulls(1, model.dtype)
        if request.condition is None:
            takes.nulls(1, model.dtype)  # the model must have learned to do without
            return None
    except ConditionError as error:
        raise invalid("condition" if request.guidance is None else "guidance", str(error)) from None
    try:
        return takes.tensor(request.condition, num_samples, model.dtype)
    except (ConditionError, OverflowError) as error:
        raise invalid("condition", str(error)) from None


def compiled(request: Solving, model: Served, t_span: tuple[float, float], dtypes: Dtypes = NO_DTYPES) -> Plan:
    """Return the solver as compiled.

    Args:
        request: what is asked for.
        model: what it is asked of.
        t_span: start and end.
        dtypes: see `times_of`.

    Raises:
        ProblemError: 422 where its arguments contradict each other or cannot be met.
    """
    try:
        return _resolve(request, model, t_span, dtypes)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    except OverflowError:
        raise invalid("grid", "grid holds an integer that is too large for double precision") from None


def _resolve(request: Solving, model: Served, t_span: tuple[float, float], dtypes: Dtypes) -> Plan:
    grid = request.grid
    if not isinstance(grid, str | list | dict):
        raise SolverError("grid", "grid must be a name, an object with a name and a parameter, or a list of times")
    if "grid" in dtypes:
        grid = np.array(grid, dtype=dtypes["grid"])
    return resolve(
        solver=request.solver,
        steps=request.steps,
        rtol=request.rtol,
        atol=request.atol,
        grid=grid,
        start=request.start,
        error_control=request.error_control,
        controller=request.controller,
        first_step=request.first_step,
        max_step=request.max_step,
        max_nfe=request.max_nfe,
        t_span=t_span,
        dtype=model.dtype,
    )


def span_of(t_span: tuple[float, float], model: Served, dtypes: Dtypes = NO_DTYPES) -> tuple[float, float]:
    """Return the span of a request; an end that stands for 0 or 1 is that.

    Raises:
        ProblemError: 422 where it leaves [0, 1].
    """
    start, end = snapped(np.array(t_span, dtype=dtypes.get("t_span")), WHOLE, WHOLE).tolist()
    if not (0 <= start <= 1 and 0 <= end <= 1):
        first, last, _, _ = apart(start, end, *WHOLE)
        raise invalid("t_span", f"t_span = [{first}, {last}] leaves [0, 1], where model {model.name!r} is defined")
    return start, end


def times_of(name: str, times: Sequence[float], solve: Plan, dtypes: Dtypes = NO_DTYPES) -> NDArray[np.float64]:
    """Return times to know the state at: strictly in the direction of the span; on a fixed grid, its own points only.

    Args:
        name: the member that holds them.
        times: as it holds them.
        solve: the compiled solver.
        dtypes: by member, the dtype in which its times came, which tells how they were rounded (see `solvers.grids`).

    Raises:
        ProblemError: 422 for a time that is outside the span, out of order, or not on the grid (the nearest is named).
    """
    try:
        found = check_save_at(solve, np.array(times, dtype=dtypes.get(name)), name)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    assert found is not None  # noqa: S101  (times were given)
    return found


def start_of(x0: Any, num_samples: int, model: Served) -> torch.Tensor | None:
    """Return start states as a tensor (num_samples, *event_shape) in the model's dtype; None for None.

    Raises:
        ProblemError: 422 for another shape, or for what is no finite number in that dtype.
    """
    if x0 is None:
        return None
    states = torch.from_numpy(to_array(x0, (num_samples, *model.event_shape))).to(model.dtype)
    if not states.isfinite().all():
        raise invalid("x0", f"x0 holds a number that is not finite in {model.card.dtype}")
    return states
