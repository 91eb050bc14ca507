"""Plans: specs compiled to rows, on a grid or under error control. Equal specs share one plan.

A row is one network call: it evaluates the velocity at x + h sum_s a[s] K[s], t + c h, and stores it in K[slot]. Its
kind says what follows: nothing, the end of a step (x advances by h sum_s b[s] K[s]), or part of choosing the automatic
first step. Fixed and adaptive Runge-Kutta methods and multistep methods differ only in their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solvers.cache import BytesCache
from solvers.catalogue import Solver
from solvers.control import CONTROLLERS, MAX_STEP_SLACK, Controller
from solvers.errors import SolverError
from solvers.grids import times
from solvers.known_values import repeated
from solvers.multistep import Exponential, adams_bashforth_weights, exponential_weights
from solvers.spec import SolverSpec, stated
from solvers.stochastic import Diffusion, weights
from solvers.tableaus import Tableau
from solvers.tuned import TUNED, TunedPlan, TunedPlans

TOLERANCE_FLOOR = {torch.float64: 1e-14, torch.float16: 3e-6, torch.bfloat16: 3e-5}
"""The smallest rtol and atol by dtype; 1e-7 for dtypes not listed."""


MID, END_FIXED, END_ADAPTIVE, FIRST_SLOPE, FIRST_STEP = range(5)
"""Kinds of rows: inside a step; end of a step on a grid; end of an attempt under error control; v at the start; the
Euler step from which the first step is chosen."""

CONTROLLED = 1 << FIRST_SLOPE | 1 << FIRST_STEP | 1 << END_ADAPTIVE
"""Bit mask of the kinds of rows after which error control makes a decision."""

_PLAN_BYTES, _TIME_BYTES = 2_000, 72  # a plan without rows; a time as a number of an array, a tuple and a list

ADAPTIVE_START = 2
"""The first two adaptive rows choose the first step; the attempt itself begins at this row."""


ROW = np.dtype(
    [
        ("c", np.float64),  # node
        ("used", np.int64),  # how many leading slots have weights in the query
        ("advance_used", np.int64),  # and in the advance
        ("slot", np.int64),  # where the velocity goes
        ("kind", np.int64),  # what follows: one of `MID` to `FIRST_STEP`
        ("next", np.int64),  # the row after this one
        ("keep", np.int64),  # the slot that keeps the advance at the end of a step on a grid, or -1
        ("restart", np.int64),  # the row after an accepted step under error control
        ("fsal", np.int64),  # 1 if the last velocity of such a step is the first of the next
        ("dense", np.int64),  # index of the dense output in a bank, or -1
        ("query_x", np.float64),  # weights of the state and of the noise z of the step, beyond the state itself: in the
        ("query_z", np.float64),  # query
        ("advance_x", np.float64),  # and in the advance; all zero unless the path is stochastic
        ("advance_z", np.float64),
    ]
)
"""One row; `next` and `restart` count from the first row of the plan or, in a bank, from the first of the bank."""

A, B, E, STIFF, BEND = range(5)
"""Places of a row's weights: of the query and of the advance, in units of h. At the end of an adaptive step also of the
error estimate and, for the stiffness signal, of y(end) - y(stage before the last) and of v(last stage) - v(stage before
the last)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows for S slots.

    Attributes:
        weights: (R, 5, S) the weights `A` to `BEND` of each row.
        records: (R,) records of `ROW`.
        dense: (S, degree) dense output, column j the coefficients of theta^(j+1); or None.
        origin: the slot that keeps the starting state; -1 for none.
        noisy: whether there are weights of noise.
    """

    weights: NDArray[np.float64]
    records: NDArray[Any]
    dense: NDArray[np.float64] | None = None
    origin: int = -1
    noisy: bool = False

    @property
    def slots(self) -> int:
        """S, the number of velocities kept."""
        return self.weights.shape[2]


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled solver, on a grid or under error control. Compared and cached by identity.

    Attributes:
        spec: what was compiled, completed with defaults.
        rows: one for each call. Under error control: the two calls that choose the first step, then one
            attempt.
        times: (N + 1,) the start and the ends of the steps; None under error control. A step that is repeated has the
            same end again, see `known_values.repeated`.
        control: how the next step follows from the error; None on a grid.
        q: order of the error estimate; 0 on a grid.
        tuned: digest of the tuned plan that gave the times or weights; empty for a stock solver.
    """

    spec: SolverSpec
    rows: Rows
    times: NDArray[np.float64] | None = None
    control: Controller | None = None
    q: int = 0
    tuned: str = ""

    @cached_property
    def name(self) -> str:
        """Name of the solver."""
        return self.spec.solver

    @cached_property
    def adaptive(self) -> bool:
        """Whether steps are under error control."""
        return self.times is None

    @cached_property
    def batch(self) -> bool:
        """Whether all samples of a request share one step size."""
        return self.spec.error_control == "batch"

    @property
    def t_span(self) -> tuple[float, float]:
        """(start, end)."""
        start, end = self.spec.t_span
        return start, end

    @property
    def bytes(self) -> int:
        """Its memory, about: rows, times, and the times in the settings."""
        points = 0 if self.times is None else len(self.times)
        return _PLAN_BYTES + self.rows.weights.nbytes + self.rows.records.nbytes + points * _TIME_BYTES

    @cached_property
    def nfe(self) -> int | None:
        """Exact number of calls for a sample; None under error control."""
        if self.times is None:
            return None
        return len(self.rows.records) if self.spec.method.multistep_order else (len(self.times) - 1) * self.rows.slots

    @property
    def nfe_bound(self) -> int:
        """The most calls that a sample can take."""
        return self.spec.max_nfe if self.nfe is None else self.nfe

    @cached_property
    def attempt_nfe(self) -> int:
        """Calls of one attempted step; without FSAL, an attempt after an accepted step takes one more beforehand."""
        return self.spec.method.tableau.stages - 1

    @property
    def nfe_least(self) -> float:
        """The fewest calls that reach the end of the span; infinite if max_step is vanishingly small beside it."""
        if self.nfe is not None:
            return self.nfe
        start, end = self.t_span
        longest = self.spec.max_step
        steps = 1.0 if longest is None else abs(end - start) / (longest * MAX_STEP_SLACK)
        steps = max(1.0, float(math.ceil(steps))) if steps < 2**53 else math.inf
        again = 0.0 if self.spec.method.tableau.fsal else steps - 1
        return (2 if self.spec.first_step is None else 1) + steps * self.attempt_nfe + again

    @property
    def max_attempts(self) -> int:
        """The most steps that a sample can attempt."""
        if self.times is not None:
            return len(self.times) - 1
        return max(1, self.spec.max_nfe // self.attempt_nfe)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of this solver, see `SolverSpec.settings`; of a tuned one, the `plan` too."""
        return self.spec.settings | ({"plan": self.tuned} if self.tuned else {})


def tolerance_floor(dtype: torch.dtype) -> float:
    """Return the smallest useful tolerance for velocities computed in a dtype.

    For half precision it was measured on trained networks: below it, error control reacts to the rounding of the
    velocities, which takes many more steps and brings samples no closer to the exact ones.
    """
    return TOLERANCE_FLOOR.get(dtype, 1e-7)


def compile(  # noqa: A001  (solvers.compile)
    spec: SolverSpec,
    dtype: torch.dtype = torch.float32,
    tuned: TunedPlans | None = None,
    compute: torch.dtype | None = None,
) -> Plan:
    """Compile a spec for states of a dtype. Equal specs share one plan.

    Args:
        spec: the settings.
        dtype: dtype of the states.
        tuned: the tuned plans of the checkpoint; None if there are none.
        compute: dtype of the velocity's own arithmetic, which sets the tolerance floor; `dtype` by default.

    Raises:
        SolverError: for a tolerance below the floor of the dtype, a plan that takes more than `max_nfe` calls, times
            that are not a grid of the span (see `grids.times`), and a solver that was not tuned (it lists those that
            were).
    """
    floor, arithmetic = tolerance_floor(compute or dtype), str(compute or dtype).removeprefix("torch.")
    for name, value in (("rtol", spec.rtol), ("atol", spec.atol)):
        if value is not None and value < floor:
            raise SolverError(
                name,
                f"{name} = {value:g} is below the floor of {floor:g} for {arithmetic}; raise it to at least {floor:g}",
            )
    learned = _learned(spec, tuned) if spec.tuned else None
    key = spec, spec.method, learned
    plan = _PLANS.find(key) or _PLANS.keep(key, _compiled(*key))
    if plan.nfe is not None and plan.nfe > spec.max_nfe:
        raise SolverError(
            "max_nfe",
            f"{plan.name} takes {plan.nfe} calls for this grid, over max_nfe = {spec.max_nfe}; raise max_nfe or take "
            "fewer steps",
        )
    if spec.max_step is not None and (least := plan.nfe_least) > spec.max_nfe:
        calls = f"at least {least:.10g} calls" if math.isfinite(least) else "more calls than can be counted"
        start, end = plan.t_span
        raise SolverError(
            "max_step",
            f"max_step = {spec.max_step:g} takes {plan.name} {calls} from {start:g} to {end:g}, over max_nfe = "
            f"{spec.max_nfe}; raise one of them",
        )
    return plan


def _learned(spec: SolverSpec, tuned: TunedPlans | None) -> TunedPlan:
    if tuned is None:
        field = "solver" if spec.solver == TUNED else "grid"
        raise SolverError(
            field,
            f"{field} {TUNED!r} is for models with tuned plans, and this one has none; make some with python -m "
            "training tune",
        )
    assert spec.steps is not None  # noqa: S101  (a tuned spec has them)
    if spec.solver == TUNED:
        return tuned.plan(spec.steps)
    return tuned.grid(f"{spec.solver}-{spec.steps}" + ("+rk" if spec.start == "rk" else ""))


def _compiled(spec: SolverSpec, method: Solver, learned: TunedPlan | None) -> Plan:
    if spec.controller is not None:
        q = method.tableau.embedded_order
        assert q is not None  # noqa: S101  (the method is adaptive)
        return Plan(spec, adaptive_rows(method.tableau), control=CONTROLLERS[spec.controller](q), q=q)
    start, end = spec.t_span
    points = times(spec.grid, spec.steps, (start, end)) if learned is None else learned.times
    if spec.resample > 1:
        ends, back = repeated(points, spec.resample)
        return Plan(spec, resampled_rows(method.tableau, back), ends)
    return Plan(spec, rows_on(points, spec, method, learned), points, tuned="" if learned is None else learned.digest)


_PLANS: BytesCache[tuple[SolverSpec, Solver, TunedPlan | None], Plan] = BytesCache(1 << 25, lambda plan: plan.bytes)
"""Recent plans, as most requests repeat one."""


def rows_on(points: NDArray[np.float64], spec: SolverSpec, method: Solver, learned: TunedPlan | None = None) -> Rows:
    """Return the rows of a solver with fixed steps on the times (N + 1,) of a grid."""
    if learned is not None and learned.weights is not None:
        return tuned_rows(learned.times, learned.weights, learned.x0_weights)
    if method.stochastic:
        assert isinstance(spec.diffusion, Diffusion)  # noqa: S101  (that of a stochastic method)
        return stochastic_rows(points, method.tableau, spec.diffusion)
    if method.exponential:
        return exponential_rows(points, method.exponential)
    if method.multistep_order:
        starter = method.tableau if spec.start == "rk" else None
        return adams_bashforth(points, method.multistep_order, starter)
    return fixed_rows(method.tableau)


def resolve(
    *, solver: str = "dopri5", dtype: torch.dtype = torch.float32, tuned: TunedPlans | None = None, **overrides: Any
) -> Plan:
    """Return `compile(SolverSpec.of(solver, ...), dtype, tuned)`; fields at their defaults count as not given.

    Args:
        solver: a name in the catalogue, or the text of a solver.
        dtype: dtype of the states.
        tuned: see `compile`.
        overrides: other fields of `SolverSpec`.
    """
    return compile(SolverSpec.of(solver, **stated(**overrides)), dtype, tuned)


def _rows(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.float64],
    slot: NDArray[np.int64],
    kind: NDArray[np.int64],
    *,
    mix: NDArray[np.float64] | None = None,
    dense: NDArray[np.float64] | None = None,
    origin: int = -1,
    **columns: Any,
) -> Rows:
    """Return rows that follow one another, unless there is a column `next`.

    Args:
        a, b: (R, S) weights of the query and of the advance.
        c, slot, kind: (R,) columns of `ROW`, as `columns`.
        mix: (R, 4) weights of the state and of z in the query, then in the advance; None for zeros.
        dense, origin: see `Rows`.
        columns: by name, (R,) or one number for all rows.
    """
    weights, records = np.zeros((len(a), 5, a.shape[1])), np.zeros(len(a), dtype=ROW)
    weights[:, A], weights[:, B] = a, b
    following = np.minimum(np.arange(len(a)) + 1, len(a) - 1)
    columns = {"c": c, "slot": slot, "kind": kind, "next": following, "keep": -1, "dense": -1} | columns
    for name, table in (("used", a), ("advance_used", b)):
        columns[name] = ((table != 0) * (np.arange(a.shape[1]) + 1)).max(axis=1)
    if mix is not None:
        columns |= zip(("query_x", "query_z", "advance_x", "advance_z"), mix.T, strict=True)
    for name, values in columns.items():
        records[name] = values
    return Rows(weights, records, dense, origin, mix is not None)


@lru_cache(maxsize=64)
def fixed_rows(tableau: Tableau) -> Rows:
    """Return one step of a Runge-Kutta method: a row for each stage with a path to b, repeated every step."""
    s = tableau.used_stages
    stage, b = np.arange(s), np.zeros((s, s))
    b[-1] = tableau.b[:s]
    kind = np.where(stage == s - 1, END_FIXED, MID)
    return _rows(tableau.matrix[:s, :s], b, tableau.c[:s], stage, kind, next=(stage + 1) % s)


@lru_cache(maxsize=64)
def adaptive_rows(tableau: Tableau) -> Rows:
    """Return the rows of the two calls that choose the first step, then of the stages after the first.

    The first stage of an attempt is already known: from the call at the start, from the last stage of the previous step
    (FSAL), or from before a rejection. Without FSAL, an extra row evaluates it after each step.
    """
    s = tableau.stages
    end = ADAPTIVE_START + s - 2
    count = end + 1 if tableau.fsal else end + 2
    a, b, c, slot = np.zeros((count, s)), np.zeros((count, s)), np.zeros(count), np.zeros(count, dtype=np.int64)
    attempt = slice(ADAPTIVE_START, end + 1)
    a[1, 0], c[1], slot[1] = 1.0, 1.0, 1
    a[attempt], c[attempt], slot[attempt] = tableau.matrix[1:], tableau.c[1:], np.arange(1, s)
    b[end] = tableau.b
    kind = np.full(count, MID)
    kind[[0, 1, end]] = FIRST_SLOPE, FIRST_STEP, END_ADAPTIVE
    following = np.arange(count) + 1
    following[end:] = ADAPTIVE_START
    restart = ADAPTIVE_START if tableau.fsal else end + 1
    own = {"next": following, "restart": restart, "fsal": tableau.fsal}
    rows = _rows(a, b, c, slot, kind, dense=tableau.interpolant, **own)
    rows.weights[end, E] = tableau.error
    if s > 2 and tableau.c[-1] == tableau.c[-2]:
        rows.weights[end, STIFF] = np.array(tableau.b) - tableau.matrix[-2]
        rows.weights[end, BEND, -2:] = -1, 1
    return rows


def adams_bashforth(times: NDArray[np.float64], order: int, starter: Tableau | None) -> Rows:
    """Return the rows of an Adams-Bashforth method over a whole grid.

    Velocities at grid points cycle through the first `order` slots of K; the inner stages of a starting step use the
    slots after them.

    Args:
        times: (N + 1,) the grid.
        order: 2, 3 or 4.
        starter: the Runge-Kutta method of the first order - 1 steps; None ramps the order up 1, 2, ... instead.
    """
    steps = len(times) - 1
    stages = starter.used_stages if starter else 1
    started = min(order - 1, steps) if starter else 0
    count, width = steps + started * (stages - 1), order + stages - 1
    a, b = np.zeros((count, width)), np.zeros((count, width))
    c, slot = np.zeros(count), np.zeros(count, dtype=np.int64)
    kind = np.full(count, END_FIXED)
    for step in range(started):
        assert starter is not None  # noqa: S101  (started is 0 without one)
        first = step * stages
        places = np.array([step, *range(order, width)])
        rows = np.arange(first, first + stages)
        a[np.ix_(rows, places)] = starter.matrix[:stages, :stages]
        b[rows[-1], places] = starter.b[:stages]
        c[rows], slot[rows], kind[rows[:-1]] = starter.c[:stages], places, MID
    offset = started * (stages - 1)
    for depth in range(1, order + 1):
        # A ramp takes one step at each lower order; the full order takes all remaining steps.
        ramp = depth < order
        if depth > steps or (ramp and starter):
            continue
        table = adams_bashforth_weights(times, depth)[: 1 if ramp else None]
        step = np.arange(depth - 1, depth - 1 + len(table))
        b[(step + offset)[:, None], (step[:, None] - np.arange(depth)) % order] = table
    multistep = np.arange(started, steps)
    slot[multistep + offset] = multistep % order
    return _rows(a, b, c, slot, kind)


def exponential_rows(times: NDArray[np.float64], method: Exponential) -> Rows:
    """Return the rows of DPM-Solver++ or UniPC over a whole grid.

    Velocity n goes to slot n mod V, and the step that it completes to slot V + (n + 1) mod (V - 1), for later steps.

    Args:
        times: (N + 1,) the grid, within [0, 1].
        method: the method.
    """
    of_velocities, of_steps = exponential_weights(times, method)
    v, s = method.velocities, method.steps
    n, h = np.arange(len(times) - 1), np.diff(times)
    b = np.zeros((len(n), v + s))
    b[n[:, None], (n[:, None] - np.arange(v)) % v] = of_velocities / h[:, None]
    b[n[:, None], v + (n[:, None] - np.arange(s)) % s] = of_steps / h[:, None]
    keep = v + (n + 1) % s
    return _rows(np.zeros_like(b), b, np.zeros(len(n)), n % v, np.full(len(n), END_FIXED), keep=keep)


def stochastic_rows(times: NDArray[np.float64], tableau: Tableau, diffusion: Diffusion) -> Rows:
    """Return the rows of Euler-Maruyama or stochastic Heun over a whole grid; without noise, those of the tableau.

    Args:
        times: (N + 1,) the grid, ascending and within [0, 1].
        tableau: Euler's or Heun's.
        diffusion: the noise.
    """
    stages, steps = tableau.used_stages, len(times) - 1
    a, b, mix = weights(times, stages, diffusion)
    slot = np.tile(np.arange(stages), steps)
    kind = np.where(slot == stages - 1, END_FIXED, MID)
    return _rows(a, b, np.tile(tableau.c[:stages], steps), slot, kind, mix=mix)


def resampled_rows(tableau: Tableau, back: NDArray[np.float64]) -> Rows:
    """Return the rows of a Runge-Kutta method whose steps end with noise where they are repeated.

    Args:
        tableau: the method.
        back: (M, 2) for each step, the factors of its result and of z, see `known_values.repeated`.
    """
    step = fixed_rows(tableau)
    stages, steps = step.slots, len(back)
    c, slot, kind = (np.tile(step.records[name], steps) for name in ("c", "slot", "kind"))
    ends = kind == END_FIXED
    scale, gamma = np.repeat(back, stages, axis=0).T
    mix = np.zeros((stages * steps, 4))
    mix[ends, 2], mix[ends, 3] = scale[ends] - 1, gamma[ends]
    a, b = np.tile(step.weights[:, A], (steps, 1)), np.tile(step.weights[:, B], (steps, 1)) * scale[:, None]
    return _rows(a, b, c, slot, kind, mix=mix)


def tuned_rows(
    times: NDArray[np.float64], weights: NDArray[np.float64], x0_weights: NDArray[np.float64] | None = None
) -> Rows:
    """Rows of a tuned plan, see `solvers.tuned`; weights (N, N) are in units of t.

    Velocity n stays in slot n; with weights (N,) of the starting state, that is in slot 0 and velocity n in slot n + 1.
    """
    n, h = np.arange(len(times) - 1), np.diff(times)
    b, slot, origin = weights / h[:, None], n, -1
    if x0_weights is not None:
        b, slot, origin = np.column_stack([x0_weights / h, b]), n + 1, 0
    return _rows(np.zeros_like(b), b, np.zeros(len(n)), slot, np.full(len(n), END_FIXED), origin=origin)
