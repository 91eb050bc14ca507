"""Measurement of the frontier of a checkpoint: NFE and endpoint error of many solvers, against a tight solution.

    python -m models measure checkpoints/moons/1

Every candidate starts from the same noise, and its samples are compared with the exact ends of their own paths (see
`models.endpoint_error`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.checkpoint.card import Card
from models.checkpoint.frontier import Curve, Frontier, Point, is_tuned, pareto, plans_hash, store_frontier, table
from models.checkpoint.loading import Checkpoint, load
from models.endpoint_error import TIGHT, Field, ended, endpoint_error, exact_ends, limit_95, solve
from models.noise import noise
from models.shapes import ShapeError, Sizes, free_places
from solvers import SolverSpec, catalogue
from solvers import compile as compiled
from solvers.errors import SolverError
from solvers.tuned import TunedPlans

MAX_NFE = 200
"""Maximum number of calls of a candidate; beyond it, error control needs fewer."""

CLOSE = 1e-4
"""95 % error, as a share of the spread, below which a method is not tried with more steps."""

STEPS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100, 128, 160, 200)
GRIDS = ("sway", "shift(0.5)", "shift(2)")
"""Grids on which the best methods are tried."""

SECONDS = 300.0

EDM = "heun2/karras"
"""EDM's sampler (Karras et al. 2022, algorithm 1 without noise): a method on a grid of its own."""

_SIMILAR = ("heun2", "ralston2", "rk4_38", "dopri5", "tsit5")  # with fixed steps they hardly differ from others
_ADAPTIVE = ("bosh3", "dopri5", "tsit5")
_PATIENCE = 3  # consecutive losses to cheaper solvers after which a method gets no more steps
_FLOOR = 0.9  # a tolerance that leaves more than this share of the error has reached rounding
_BEST = 2  # methods tried on other grids, for each number of calls
_GRID_NFE = 40
_SAMPLES, _FEW, _LARGE = 256, 64, 256
"""Number of paths, and the number if a state has more elements than `_LARGE`, or time is short."""

_AFTER_ENDS = 0.1
"""Time for solvers at the least, as a share of the time that the exact ends took."""

_SEED = 7_070_707

Progress = Callable[[str], None]


class MeasureError(Exception):
    """A model cannot be measured; the message says why."""


def measure_curve(
    field: Field,
    x0: Tensor,
    *,
    methods: Sequence[str] | None = None,
    plans: TunedPlans | None = None,
    grids: Sequence[str] | None = None,
    tolerances: Sequence[float] | None = None,
    seconds: float = SECONDS,
    close: float = CLOSE,
    whole: Sequence[str] = (),
    until_error: float = np.inf,
    progress: Progress = lambda _: None,
    note: Progress = lambda _: None,
    ends: Tensor | None = None,
) -> Curve:
    """Measure solvers on one field, cheapest first, until all are tried or time runs out.

    If time is short, there are only `_FEW` paths. At least these are solved, and solvers get a tenth of the time that
    this takes; at least one is measured.

    A method gets more steps until its error or that of a cheaper solver is small enough, or until it falls further and
    further behind cheaper solvers. Tolerances are tightened until the error hardly changes.

    Args:
        field: the velocity, in the dtype of x0, on the CPU.
        x0: noise, (samples, *event).
        methods: names of solvers with fixed steps; by default one of each order and kind, and `EDM`. Methods named here
            get more steps until they are close themselves, however good others are.
        plans: the tuned plans of the checkpoint, tried first.
        grids: other grids for the best methods; by default `GRIDS`.
        tolerances: tolerances of error control; by default powers of ten that the dtype allows.
        seconds: limit on the wall-clock time, which includes the exact ends.
        close: errors, as a share of the spread, below which a method is not tried with more steps.
        whole: methods that get more steps until they are close, like those named in `methods`.
        until_error: time does not run out before the 95 % error of a solver, as a share of the spread, is within this.
        progress: called with the solver being measured.
        note: called with a line for the user if time is short.
        ends: the result of `exact_ends`; computed if omitted.

    Raises:
        MeasureError: no path reached t = 1.
    """
    began = time.monotonic()
    progress("exact ends")
    ends = _ends(field, x0, seconds, note) if ends is None else ends
    x0, took = x0[: len(ends)], time.monotonic() - began
    if took > seconds:
        note(f"the exact ends of {len(x0)} paths alone took {took:.0f} s, longer than the limit of {seconds:.3g} s")
    until = began + max(seconds, (1 + _AFTER_ENDS) * took)
    sound = ends.flatten(1).isfinite().all(1)
    if not sound.any():
        raise MeasureError(f"none of {len(x0)} paths reached t = 1; the network is not usable")
    spread = endpoint_error(ends[sound], ends[sound].mean(0, keepdim=True))
    if not spread > 0:
        raise MeasureError("all paths end at the same point, so errors have no scale")
    run = _Run(field, x0, ends, sound, spread, until, until_error, close, progress, plans)
    run.all(() if plans is None else plans.texts)
    own = [*(name for name in catalogue.solvers() if name not in _SIMILAR), EDM]
    names = own if methods is None else methods
    run.ladder(names, {*whole, *(methods or ())})
    grids = GRIDS if grids is None else grids
    for nfe in [steps for steps in STEPS if steps <= _GRID_NFE and not run.close_before(steps)] if grids else ():
        run.all(f"{name}/{grid}" for name in run.best_at(nfe) for grid in grids)
    if tolerances is None:
        tolerances = [10.0**-k for k in range(2, 11 if x0.dtype == torch.float64 else 7)]
    run.tighten(tolerances)
    if not run.points:
        raise MeasureError("no solver brought 95 % of the samples to the end; the network is not usable")
    points = sorted(run.points.values(), key=lambda point: (point.nfe, point.error_95))
    return Curve(guidance=field.guidance, samples=len(x0), spread=spread, complete=run.complete, points=tuple(points))


def _ends(field: Field, x0: Tensor, seconds: float, note: Progress) -> Tensor:
    """Return the exact ends of all paths, or those of the first `_FEW` if all would take most of the time."""
    if len(x0) <= _FEW or seconds == np.inf:
        return exact_ends(field, x0)
    began = time.monotonic()
    ends = exact_ends(field, x0[:_FEW])
    whole = (time.monotonic() - began) * len(x0) / _FEW
    if whole > seconds / 2:
        note(f"errors are measured on {_FEW} paths, as the exact ends of {len(x0)} could take {whole:.0f} s")
        return ends
    return torch.cat([ends, exact_ends(field.since(_FEW), x0[_FEW:])])


@dataclass
class _Run:
    """A run of measurements and its results so far."""

    field: Field
    x0: Tensor
    ends: Tensor
    sound: Tensor
    spread: float
    until: float
    until_error: float
    close: float
    progress: Progress
    plans: TunedPlans | None = None

    def __post_init__(self) -> None:
        self.points: dict[str, Point] = {}
        self.complete = True
        self._best = np.inf

    def all(self, texts: Iterator[str] | Sequence[str]) -> None:
        """Measure solvers while time allows."""
        for text in texts:
            self.one(text)

    def ladder(self, names: Sequence[str], whole: Container[str]) -> None:
        """Measure methods (or methods on a grid) with ever more steps, fewest calls first, until each is close enough.

        Methods not in `whole` stop earlier, once more steps would never be chosen.
        """
        queue = [(self._nfe(name, 0), name, 0) for name in names]
        heapq.heapify(queue)
        fallen = {name: _Behind() for name in names}
        while queue:
            nfe, name, place = heapq.heappop(queue)
            if nfe > MAX_NFE or (name not in whole and self.close_before(nfe)):
                continue
            point = self.one(_text(name, STEPS[place]))
            done = point is not None and self._is_close(point)
            if point is not None and name not in whole:
                done |= fallen[name].tell(point.error_95, self._best_before(point))
            if not done and place + 1 < len(STEPS):
                heapq.heappush(queue, (self._nfe(name, place + 1), name, place + 1))

    def tighten(self, tolerances: Sequence[float]) -> None:
        """Measure error control at ever tighter tolerances, until errors hardly change or other solvers are better."""
        names = list(_ADAPTIVE)
        before = dict.fromkeys(names, np.inf)
        fallen = {name: _Behind() for name in names}
        for tolerance in tolerances:
            for name in tuple(names):
                point = self.one(f"{name}@{tolerance:g}")
                if point is None:
                    continue
                fell = fallen[name].tell(point.error_95, self._best_before(point))
                if fell or point.error_95 > _FLOOR * before[name]:
                    names.remove(name)
                before[name] = point.error_95

    def close_before(self, nfe: float) -> bool:
        """Return whether a solver with fewer calls is already close enough."""
        return any(point.nfe_most < nfe and self._is_close(point) for point in self.points.values())

    def _is_close(self, point: Point) -> bool:
        return max(point.error_95, point.error) <= self.close

    def _best_before(self, point: Point) -> float:
        """Return the smallest error among other solvers of the same or lower cost."""
        others = (one for one in self.points.values() if one.nfe <= point.nfe and one.solver != point.solver)
        return min((one.error_95 for one in others), default=np.inf)

    def _nfe(self, name: str, place: int) -> int:
        try:
            return compiled(SolverSpec.parse(_text(name, STEPS[place])), self.x0.dtype).nfe or MAX_NFE + 1
        except SolverError:  # the method does not support every number of steps
            return MAX_NFE + 1

    def best_at(self, nfe: int) -> list[str]:
        """Return the solvers with the smallest errors at this number of calls, on the uniform grid."""
        here = [point for point in self.points.values() if point.nfe == nfe and "/" not in point.solver]
        return [point.solver for point in sorted(here, key=lambda each: each.error_95)[:_BEST]]

    def one(self, text: str) -> Point | None:
        """Measure one solver; None if time is over, the solver is not available, or too many samples fail."""
        if self.points and self._best <= self.until_error and time.monotonic() > self.until:
            self.complete = False
            return None
        try:
            spec = SolverSpec.parse(text)
            self.progress(str(spec))
            solution = solve(self.field, self.x0, spec, plans=self.plans)
        except SolverError:
            return None
        distance = (solution.x.double() - self.ends).flatten(1).square().sum(1).sqrt()
        arrived = ended(solution)
        distance = torch.where(arrived & distance.isfinite(), distance, torch.inf)[self.sound]
        relative = distance.numpy() / self.spread
        limit, finite = limit_95(relative), relative[np.isfinite(relative)]
        if not np.isfinite(limit):
            return None
        point = Point(
            solver=str(spec),
            nfe=float(solution.nfe.mean()),
            nfe_most=int(solution.nfe.max()),
            error=float(np.sqrt(np.square(finite).mean())),
            error_95=limit,
            failed=int((~arrived).sum()),
        )
        self.points[point.solver] = point
        self._best = min(self._best, point.error_95)
        return point


def _text(name: str, steps: int) -> str:
    """Return the solver's text for a method, or for a method on a grid, such as `heun2/karras`."""
    method, slash, grid = name.partition("/")
    return f"{method}-{steps}{slash}{grid}"


@dataclass
class _Behind:
    """The record of a method against cheaper solvers as its number of steps grows."""

    ratio: float = np.inf
    times: int = 0

    def tell(self, error: float, best: float) -> bool:
        """Add the next error; return whether the method has fallen behind for good."""
        ratio = error / best if best > 0 else np.inf
        self.times = self.times + 1 if ratio > 1 and ratio >= self.ratio else 0
        self.ratio = ratio
        return self.times >= _PATIENCE


def measure(
    checkpoint: Checkpoint,
    *,
    conditions: Tensor | None = None,
    conditions_text: str = "",
    guidances: Sequence[float] = (1.0,),
    seconds: float = SECONDS,
    whole: Sequence[str] = (),
    only_tuned: bool = False,
    samples: int | None = None,
    sizes: Mapping[str, int] | None = None,
    until_error: float = np.inf,
    progress: Progress = lambda _: None,
    note: Progress = lambda _: None,
) -> Frontier:
    """Measure the frontier of a checkpoint.

    Args:
        checkpoint: a checkpoint on the CPU.
        conditions: conditions of a conditional model, repeated to the number of samples; by default every label in
            turn, or example vectors.
        conditions_text: a description of the conditions.
        guidances: guidance strengths of a conditional model, one curve each.
        seconds: limit on the wall-clock time of all curves together, see `measure_curve`; the cheapest solvers come
            first.
        whole: see `measure_curve`.
        only_tuned: whether to measure only the tuned solvers of the checkpoint.
        samples: number of paths; by default as many as the size of a state allows.
        sizes: sizes of the free axes.
        until_error, progress, note: see `measure_curve`.

    Raises:
        MeasureError: the model has no endpoint error, is not usable, or takes no guidance; a free axis has no size, or
            one that is not allowed.
    """
    card, sizes = checkpoint.card, dict(sizes or {})
    if card.field.takes_ends:
        raise MeasureError(
            "the model is a field of average velocity: it has no endpoint error, as there is no path to follow; "
            "compare its samples with data: python -m training evaluate"
        )
    if card.conditions and card.condition is None:
        names = ", ".join(card.conditions)
        raise MeasureError(
            f"the model takes conditions by name ({names}), and there are no examples of them, so it has no frontier; "
            "name a solver in requests"
        )
    shape = _shape_of(card, sizes)
    samples = samples or (_SAMPLES if np.prod(shape) <= _LARGE else _FEW)
    x0 = noise(_SEED, 0, samples, shape, checkpoint.dtype, free_places(card.event_shape))
    takes = card.conditioning
    curves = list[Curve]()
    until = time.monotonic() + seconds
    if takes is None:
        if any(g != 1 for g in guidances):
            raise MeasureError("guidance is for conditional models, and this one is not conditional; leave it out")
        conditions_text, given, of = "", None, [None]
    else:
        of = list(dict.fromkeys(float(g) for g in guidances))
        if conditions is None:
            conditions = takes.unpack(takes.examples(samples, checkpoint.dtype))[0]
            quantity = conditions.is_floating_point()
            conditions_text = "example vectors, not real ones" if quantity else "every label in turn"
        given = conditions[torch.arange(samples) % len(conditions)]
        if any(g != 1 for g in of) and not takes.nullable:
            raise MeasureError("the model was trained without a null condition, so it cannot be guided")
    for place, guidance in enumerate(of):
        where = "" if guidance in (None, 1) else f"guidance {guidance:g}: "
        left = max(0.0, until - time.monotonic()) / (len(of) - place)
        field = Field(checkpoint.velocity, given, takes, guidance)
        show = lambda text, where=where: progress(where + text)  # noqa: E731
        none: dict[str, Any] = {"methods": (), "grids": (), "tolerances": ()} if only_tuned else {}
        curves.append(
            measure_curve(
                field,
                x0,
                plans=checkpoint.plans,
                seconds=left,
                whole=whole,
                until_error=until_error,
                progress=show,
                note=note,
                **none,
            )
        )
    return Frontier(
        weights_sha256=card.weights_sha256,
        plans_sha256=plans_hash(checkpoint.path),
        tight=f"dopri5 at {TIGHT:g} in float64",
        conditions=conditions_text,
        sizes=sizes,
        libraries={m.__name__: str(m.__version__) for m in (np, torch)},
        curves=tuple(curves),
    )


def _shape_of(card: Card, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of states; raise an error unless each free axis has a size, and nothing else does."""
    try:
        for axis in sizes:
            if axis not in card.bounds:
                raise MeasureError(f"the model has no axis {axis!r}; its shape is {list(card.event_shape)}")
        noted = Sizes(card.bounds)
        for axis, size in sizes.items():
            noted.note(axis, size, "--shape")
        return card.event_of(sizes)
    except ShapeError as error:
        raise MeasureError(f"{error}: --shape {error.axis}=N, N from {card.bounds[error.axis].describe()}") from None


def add_tuned(checkpoint: Checkpoint, frontier: Frontier, progress: Progress = lambda _: None) -> Frontier | None:
    """Measure the tuned solvers of a checkpoint, and add them to an existing frontier.

    Returns:
        The extended frontier; None if it was measured on other paths, so that errors cannot be compared.

    Raises:
        MeasureError: the model has no endpoint error, or is not usable.
    """
    guidances = [1.0 if curve.guidance is None else curve.guidance for curve in frontier.curves]
    tuned = measure(
        checkpoint,
        guidances=guidances,
        seconds=np.inf,
        only_tuned=True,
        samples=frontier.curves[0].samples,
        sizes=frontier.sizes,
        progress=progress,
    )
    curves = list[Curve]()
    for old, new in zip(frontier.curves, tuned.curves, strict=False):
        if not old.has_paths_of(new):
            return None
        stock = [point for point in old.points if not is_tuned(point.solver)]
        points = sorted([*stock, *new.points], key=lambda point: (point.nfe, point.error_95))
        curves.append(old.model_copy(update={"points": tuple(points)}))
    if frontier.conditions != tuned.conditions or len(curves) < len(frontier.curves):
        return None
    return frontier.model_copy(update={"plans_sha256": tuned.plans_sha256, "curves": tuple(curves)})


def run(
    path: Path, guidances: Sequence[float], seconds: float, progress: Progress, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Measure the checkpoint at `path`, merge the result into its frontier, and return a report in lines.

    Raises:
        CheckpointError, FrontierError, MeasureError: it cannot be loaded, measured or written.
    """
    checkpoint = load(path)
    notes = list[str]()
    frontier = measure(
        checkpoint, guidances=guidances, seconds=seconds, sizes=sizes, progress=progress, note=notes.append
    )
    return [*lines(frontier), *notes, store_frontier(path, checkpoint.card, frontier)]


def lines(frontier: Frontier) -> list[str]:
    """Return a report in lines: the Pareto-optimal solvers for each guidance."""
    found = [f"shape {axis}={size}" for axis, size in frontier.sizes.items()]
    for curve in frontier.curves:
        if curve.guidance is not None:
            found.append(f"guidance {curve.guidance:g}, conditions: {frontier.conditions}")
        found.append(table(curve, pareto(curve.points)))
        if not curve.complete:
            found.append("time ran out before all solvers were tried; raise --seconds")
    return found
