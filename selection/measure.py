"""Measurement of the frontier of a checkpoint: the cost and the endpoint error of the candidates.

    python -m models measure checkpoints/moons/1

Every candidate starts from the same noise, and its samples are compared with the exact ends of their own paths.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.arrays import load_arrays
from models.checkpoint.card import Card
from models.checkpoint.loading import Checkpoint, load
from models.condition_values import Values
from models.conditions import ONE, ConditionError, NamedConditions
from models.field import Field, solve
from models.noise import noise
from models.prelude import combinations
from models.shapes import AxisSizes, ShapeError, free_axes, free_places, matched
from selection.candidates import candidates
from selection.choice import USUAL_ERROR, BudgetLimits, Evidence, NoneFits, choose
from selection.error import TIGHT, Ends, NoErrors, Point, arrivals, exact_ends
from selection.frontier import Curve, StoredFrontier, merged, pareto, plans_hash, store_frontier, table
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.tuned import TunedPlans

SECONDS = 300.0
SEED = 7_070_707

REFERENCE = f"dopri5 at {TIGHT:g} in float64"

_SAMPLES, _FEW, _LARGE = 512, 96, 256
"""Number of paths, and the number if a state has more elements than `_LARGE`, or time is short."""

_AFTER_ENDS = 0.1
"""Time for solvers at the least, as a share of the time that the exact ends took."""

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Say nothing."""


def measure_solver(text: str, field: Field, x0: Tensor, ends: Ends, plans: TunedPlans | None = None) -> Point | None:
    """Measure one solver from the noise x0 (samples, *event); None if it is not available here, or over 5 % fail."""
    try:
        spec = SolverSpec.parse(text)
        solution = solve(field, x0, spec, plans=plans)
    except SolverError:
        return None
    return ends.point(str(spec), arrivals(solution.x, solution.status), solution.nfe)


def measure_curve(
    field: Field,
    x0: Tensor,
    *,
    seed: int = SEED,
    plans: TunedPlans | None = None,
    only: Iterable[str] | None = None,
    seconds: float = SECONDS,
    until_error: float = np.inf,
    progress: Progress = silent,
    note: Progress = silent,
) -> Curve:
    """Measure the candidates on one field, cheapest first, until all are tried or time runs out.

    If time is short, there are only `_FEW` paths. At least these are solved, and solvers get a tenth of the time that
    this takes; at least one is measured.

    Args:
        field: the velocity, in the dtype of x0, on the CPU.
        x0: noise, (samples, *event).
        seed: its seed, which is noted.
        plans: the tuned plans of the checkpoint, tried first.
        only: the solvers to measure instead of the candidates.
        seconds: limit on the wall-clock time, which includes the exact ends.
        until_error: time does not run out before the p95 of a solver is within this.
        progress: called with the solver being measured.
        note: called with a line for the user if time is short.

    Raises:
        NoErrors: no path reached t = 1, or no solver brought 95 % of the samples there.
    """
    start = time.monotonic()
    progress("exact ends")
    ends = Ends.of(_ends(field, x0, seconds, note))
    x0 = x0[: len(ends.states)]
    spent = time.monotonic() - start
    if spent > seconds:
        note(f"the exact ends of {len(x0)} paths alone took {spent:.0f} s, over the limit of {seconds:.3g} s")
    until = start + max(seconds, (1 + _AFTER_ENDS) * spent)
    points = dict[str, Point]()
    tuned = () if plans is None else plans.texts
    complete = True
    for text in candidates(points, x0.dtype, tuned) if only is None else only:
        reached = any(point.p95_high <= until_error for point in points.values())
        if reached and time.monotonic() > until:
            complete = False
            break
        progress(text)
        point = measure_solver(text, field, x0, ends, plans)
        if point is not None:
            points[point.solver] = point
    if not points:
        raise NoErrors("no solver brought 95 % of the samples to the end; the network is not usable")
    guidance = None if isinstance(field.guidance, Tensor) else field.guidance
    return Curve(
        guidance=guidance, samples=len(x0), seed=seed, spread=ends.spread, complete=complete,
        points=tuple(sorted(points.values(), key=lambda point: point.cost)),
    )  # fmt: skip


def _ends(field: Field, x0: Tensor, seconds: float, note: Progress) -> Tensor:
    """Return the exact ends of all paths, or those of the first `_FEW` if all would take most of the time."""
    if len(x0) <= _FEW or seconds == np.inf:
        return exact_ends(field, x0)
    start = time.monotonic()
    ends = exact_ends(field, x0[:_FEW])
    whole = (time.monotonic() - start) * len(x0) / _FEW
    if whole > seconds / 2:
        note(f"errors are measured on {_FEW} paths, as the exact ends of {len(x0)} could take {whole:.0f} s")
        return ends
    return torch.cat([ends, exact_ends(replace(field, first=_FEW), x0[_FEW:])])


def measure(
    checkpoint: Checkpoint,
    *,
    conditions: Tensor | None = None,
    examples: Mapping[str, NDArray[Any]] | None = None,
    conditions_text: str = "",
    guidances: Sequence[float] = (1.0,),
    seconds: float = SECONDS,
    only_tuned: bool = False,
    samples: int | None = None,
    sizes: Mapping[str, int] | None = None,
    until_error: float = np.inf,
    progress: Progress = silent,
    note: Progress = silent,
) -> StoredFrontier:
    """Measure the frontier of a checkpoint.

    Args:
        checkpoint: a checkpoint on the CPU.
        conditions: labels or vectors as the network takes them, repeated to the number of samples; by default every
            label in turn, or example vectors.
        examples: conditions of any model as requests give them, an array (examples, *shape) by name; likewise.
        conditions_text: a description of the conditions.
        guidances: guidance strengths of a conditional model, one curve each.
        seconds: limit on the wall-clock time of all curves together, see `measure_curve`; the cheapest solvers come
            first.
        only_tuned: whether to measure only the tuned solvers of the checkpoint.
        samples: number of paths; by default as many as the size of a state allows.
        sizes: sizes of the free axes.
        until_error, progress, note: see `measure_curve`.

    Raises:
        NoErrors: the model has no endpoint error, is not usable, or takes no guidance; a free axis has no size, or one
            that is not allowed.
    """
    card, sizes = checkpoint.card, dict(sizes or {})
    if why := card.field.no_path:
        raise NoErrors(
            f"the model {why}: it has no endpoint error; compare its samples with data: python -m training evaluate"
        )
    if card.conditions and card.condition is None and not examples:
        assert card.request_conditions is not None  # noqa: S101  (it has conditions)
        names = ", ".join(card.request_conditions.in_requests)
        raise NoErrors(
            f"the model takes conditions by name ({names}), and there are no examples of them; give some: --condition "
            "FILE.npz, with an array (examples, ...) for each name"
        )
    shape, sizes = _shape_of(card, sizes, examples or {})
    samples = samples or (_SAMPLES if np.prod(shape) <= _LARGE else _FEW)
    x0 = noise(SEED, 0, samples, shape, checkpoint.dtype, free_places(card.event_shape), card.centred)
    takes = checkpoint.network_conditions
    strengths: list[float | None] = list(dict.fromkeys(float(g) for g in guidances))
    rows = None
    if takes is None:
        if any(g != 1 for g in strengths):
            raise NoErrors("guidance is for conditional models, and this one is not conditional; leave it out")
        conditions_text, strengths = "", [None]
    elif examples:
        rows, takes = _rows_of(checkpoint, examples, samples)
    else:
        if conditions is None:
            [conditions] = takes.unpack(takes.examples(samples, checkpoint.dtype))
            quantity = conditions.is_floating_point()
            conditions_text = "example vectors, not real ones" if quantity else "every label in turn"
        rows = conditions[torch.arange(samples) % len(conditions)]
    if takes is not None and any(g != 1 for g in strengths) and not takes.nullable:
        raise NoErrors("the model was trained without a null condition, so it cannot be guided")
    curves = list[Curve]()
    until = time.monotonic() + seconds
    for place, guidance in enumerate(strengths):
        where = "" if guidance in (None, 1) else f"guidance {guidance:g}: "
        curves.append(
            measure_curve(
                Field(checkpoint.velocity, rows, takes, guidance),
                x0,
                plans=checkpoint.plans,
                only=(checkpoint.plans.texts if checkpoint.plans else ()) if only_tuned else None,
                seconds=max(0.0, until - time.monotonic()) / (len(strengths) - place),
                until_error=until_error,
                progress=lambda text, where=where: progress(where + text),
                note=note,
            )
        )
    return StoredFrontier(
        weights_sha256=card.weights_sha256,
        plans_sha256=plans_hash(checkpoint.path),
        reference=REFERENCE,
        conditions=conditions_text,
        sizes=sizes,
        libraries={m.__name__: str(m.__version__) for m in (np, torch)},
        curves=tuple(curves),
    )


def _shape_of(
    card: Card, sizes: Mapping[str, int], examples: Mapping[str, NDArray[Any]]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape of states, and the sizes of its free axes: each is given, or that of the examples."""
    try:
        for axis in sizes:
            if axis not in card.bounds:
                raise NoErrors(f"the model has no axis {axis!r}; its shape is {list(card.event_shape)}")
        noted = AxisSizes(card.bounds)
        for axis, size in sizes.items():
            noted.note(axis, size, "--shape")
        for name, array in examples.items():
            entry = {} if card.request_conditions is None else card.request_conditions.entries
            for axis, size in (matched(entry[name].shape, array.shape[1:]) or {}).items() if name in entry else ():
                noted.note(axis, size, f"--condition {name}")
        free = {axis: size for axis, size in noted.sizes.items() if axis in free_axes(card.event_shape)}
        return card.event_of(free), free
    except ShapeError as error:
        raise NoErrors(f"{error}: --shape {error.axis}=N, N from {card.bounds[error.axis].describe()}") from None


def read_examples(path: Path) -> dict[str, NDArray[Any]]:
    """Read examples of conditions: an npz file with an array for each name, or an npy file for `condition`.

    Raises:
        NoErrors: it cannot be read, or an array has no rows.
    """
    try:
        content = load_arrays(path)
        arrays = {ONE: content} if isinstance(content, np.ndarray) else content
    except (OSError, ValueError) as error:
        raise NoErrors(f"--condition {path}: {error}; it must be an npz file with an array for each name") from None
    if empty := [name for name, array in arrays.items() if array.ndim == 0 or not len(array)]:
        raise NoErrors(f"--condition {path}: {empty[0]} has no rows; it must have the shape (examples, ...)")
    return arrays


def _rows_of(checkpoint: Checkpoint, examples: Mapping[str, NDArray[Any]], samples: int) -> tuple[Any, NamedConditions]:
    """Return a row for each sample of the conditions as the network takes them, examples in turn; and their sizes."""
    takes, requested = checkpoint.network_conditions, checkpoint.request_conditions
    assert takes is not None and requested is not None  # noqa: S101, PT018  (it has conditions)
    turns = {name: array[np.arange(samples) % len(array)] for name, array in examples.items()}
    try:
        values = Values(requested, turns, samples, checkpoint.dtype)
        conditions, takes = values.tensors(), takes.sized(values.sizes.sizes)
        tensors = {name: distinct.expanded(samples) for name, distinct in conditions.items()}
        if checkpoint.prelude is not None:
            prelude = checkpoint.prelude
            inputs, place = combinations(conditions, prelude.inputs)
            with torch.no_grad():
                outputs = [prelude.call(takes, *(rows[k : k + 1] for rows in inputs)) for k in range(len(inputs[0]))]
            of = torch.zeros(samples, dtype=torch.int64) if place is None else torch.from_numpy(place)
            for name, rows in zip(prelude.outputs, zip(*outputs, strict=True), strict=True):
                tensors[name] = torch.cat(rows)[of]
    except ConditionError as error:
        raise NoErrors(f"--condition: {error}") from None
    return takes.pack([tensors[name] for name in takes.entries]), takes


def add_tuned(checkpoint: Checkpoint, frontier: StoredFrontier, progress: Progress = silent) -> StoredFrontier | None:
    """Measure the tuned solvers of a checkpoint, and add them to an existing frontier.

    Returns:
        The extended frontier; None if it was measured on other paths, so that errors cannot be compared.

    Raises:
        NoErrors: the model has no endpoint error, or is not usable.
    """
    tuned = measure(
        checkpoint,
        guidances=[1.0 if curve.guidance is None else curve.guidance for curve in frontier.curves],
        seconds=np.inf,
        only_tuned=True,
        samples=frontier.curves[0].samples,
        sizes=frontier.sizes,
        progress=progress,
    )
    both = merged(frontier, tuned)
    if both is None:
        return None
    complete = {curve.guidance: curve.complete for curve in frontier.curves}
    curves = (curve.model_copy(update={"complete": complete[curve.guidance]}) for curve in both.curves)
    return both.model_copy(update={"curves": tuple(curves)})


def run(path: Path, examples: Path | None = None, **options: Any) -> list[str]:
    """Measure the checkpoint at `path` with options of `measure`, store the result, and return a report in lines.

    Args:
        path: folder of a version.
        examples: a file with examples of its conditions, see `read_examples`.
        options: see `measure`.

    Raises:
        CheckpointError, NoErrors: it cannot be loaded, measured or written.
    """
    checkpoint = load(path)
    notes = list[str]()
    if examples is not None:
        options |= {"examples": read_examples(examples), "conditions_text": f"the examples of {examples.name}"}
    frontier = measure(checkpoint, note=notes.append, **options)
    return [*lines(frontier), *notes, store_frontier(path, checkpoint.card, frontier)]


def lines(frontier: StoredFrontier) -> list[str]:
    """Return a report in lines: the Pareto-optimal solvers for each guidance."""
    report = [f"shape {axis}={size}" for axis, size in frontier.sizes.items()]
    for curve in frontier.curves:
        if curve.guidance is not None:
            report.append(f"guidance {curve.guidance:g}, conditions: {frontier.conditions}")
        report.append(table(curve, pareto(curve.points)))
        with contextlib.suppress(NoneFits):
            evidence = Evidence(curve, conditions=frontier.conditions, own=not frontier.conditions)
            report.append(choose([evidence], BudgetLimits(max_error=USUAL_ERROR))[0].text)
        if not curve.complete:
            report.append("time ran out before all solvers were tried; raise --seconds")
    return report
