"""Comparison of solvers on the same noise: their costs, how far apart they end, and which one the model needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pathline import _plot
from pathline._bar import Follow, following
from pathline._calls import Calls
from pathline._events import Forecast, Progress
from pathline._fields import SampleOptions
from pathline._files import save
from pathline._flow import Flow
from pathline._page import page_url
from pathline._request import chosen_seed
from pathline._results import SampleResult
from pathline.errors import InvalidRequest

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

SolverLike = str | Mapping[str, Any]
"""A solver as text, such as ``rk4-20`` or ``dopri5@1e-5``, or as a mapping of options of `sample`."""

CANDIDATES = (
    *("euler-10", "euler-20", "euler-50", "midpoint-10", "midpoint-20", "rk4-5", "rk4-10", "rk4-20"),
    *("dopri5@1e-3", "dopri5@1e-5"),
)
"""The solvers that are compared by default, from cheap to careful."""

REFERENCE = "dopri5@1e-7"
"""The default reference of the command line: the smallest tolerance that float32 models allow."""

_STEPS = 20  # of a solver without error control that is given by its bare name
_MATRIX = 6  # most solvers for which the distances of all pairs are printed


@dataclass(frozen=True)
class ComparisonRow:
    """One solver of a comparison.

    Attributes:
        label: The solver as text, with all its settings.
        nfe: Velocity evaluations of the slowest sample.
        nfe_mean: Mean over the samples.
        solve_s: Seconds of solving, or None if the service did not report them.
        total_s: Seconds in the service, or None.
        failed: How many samples did not reach the end.
        distance: Mean Euclidean distance of its endpoints from those of the reference for the same noise; None if
            there was no reference, or no sample reached the end in both.
        relative: `distance` as a share of the spread of the reference's samples.
    """

    label: str
    nfe: int
    nfe_mean: float
    solve_s: float | None
    total_s: float | None
    failed: int
    distance: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """Which solver a model needs: the one with the fewest evaluations that is close enough to the reference.

    Attributes:
        row: The row of that solver; None if no solver is close enough.
        within: Largest acceptable distance, as a share of the spread of the samples.
        reference: The reference solver as text.
        closest: The row with the smallest distance.
    """

    row: ComparisonRow | None
    within: float
    reference: str
    closest: ComparisonRow | None

    def __str__(self) -> str:
        requirement = f"within {100 * self.within:g} % of the samples' spread from {self.reference}"
        if self.row is not None and self.row.relative is not None:
            return (
                f"recommended: {self.row.label}, {self.row.nfe} NFE: the cheapest of these {requirement} "
                f"(it is {100 * self.row.relative:.2g} % away)"
            )
        if self.closest is None or self.closest.relative is None:
            return f"no recommendation: no sample reached the end with both {self.reference} and any of these solvers"
        return (
            f"no recommendation: none of these is {requirement}; the closest is {self.closest.label} with "
            f"{100 * self.closest.relative:.2g} %. Try more steps, a tighter tolerance, or allow more"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A table of compared solvers, which `print` shows; ``comparison["rk4-20"]`` is the result of one of them.

    Attributes:
        model: Name of the model.
        seed: Seed of the common noise.
        num_samples: How many samples each solver drew.
        rows: One for each solver, in the requested order.
        distances: ``distances[i, j]`` is the mean over the samples of the Euclidean distance between the endpoints of
            solver i and solver j from the same noise; samples that failed in either are left out.
        max_distances: The greatest such distance.
        results: The full results.
        reference: The result of the reference from the same noise, or None if none was requested.
        url: Link to the service's page with the recommended (or closest) solver and the reference side by side, or
            without a reference the first two solvers.
        names: The solvers as they were given.
    """

    model: str
    seed: int
    num_samples: int
    rows: tuple[ComparisonRow, ...]
    distances: np.ndarray
    max_distances: np.ndarray
    results: tuple[SampleResult, ...]
    reference: SampleResult | None = None
    url: str = ""
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> SampleResult:
        if not isinstance(key, str):
            return self.results[key]
        labels = [row.label for row in self.rows]
        for texts in (labels, list(self.names)):
            if key in texts:
                return self.results[texts.index(key)]
        raise KeyError(f"{key!r} was not compared; use one of {', '.join(labels)}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.distances, dtype)

    def to_torch(self) -> torch.Tensor:
        """Return `distances` as a tensor that shares its memory; needs torch."""
        return _plot.needed("torch", "to_torch").from_numpy(self.distances)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row for each solver; needs pandas."""
        return _plot.needed("pandas", "to_dataframe").DataFrame([vars(row) for row in self.rows])

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the table to a file: .csv, .json, .npz or .npy (the distances), or .png (the figure of `plot`).

        Raises:
            ValueError: The extension is none of these, or there is no reference to draw the distances from.
            ImportError: A figure needs matplotlib.
            OSError: The file cannot be written.
        """
        arrays = {"distances": self.distances, "max_distances": self.max_distances}
        columns = {name: np.array([getattr(row, name) for row in self.rows]) for name in ComparisonRow.__annotations__}
        return save(Path(path), arrays, self.to_dict(), columns, lambda: _plot.png(self.plot))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the distance from the reference over the NFE of each solver; needs matplotlib.

        Args:
            ax: Where to draw; by default a new figure.

        Raises:
            ValueError: There is no reference.
        """
        rows = [row for row in self.rows if row.relative]
        labels, nfe = [row.label for row in rows], [row.nfe_mean for row in rows]
        against = f", against {self.reference.solver_text}" if self.reference else ""
        return _plot.distances(labels, nfe, [row.relative or 0.0 for row in rows], ax, f"{self.model}{against}")

    def recommend(self, within: float = 0.01) -> Recommendation:
        """Return which of these solvers the model needs.

        Args:
            within: How far its samples may be from the reference's on average, as a share of their spread (the root
                mean square distance from their mean). The default, 1 %, is far too small a difference to see.

        Raises:
            ValueError: There is no reference, or `within` is not above 0.
        """
        if self.reference is None:
            raise ValueError("there is no reference to score against; call compare(..., reference='dopri5@1e-7')")
        if not within > 0:
            raise ValueError(f"within={within} is not allowed; use a share above 0, such as 0.01 for 1 %")
        known = [row for row in self.rows if row.relative is not None]
        near = [row for row in known if row.failed == 0 and row.relative is not None and row.relative <= within]
        return Recommendation(
            min(near, key=lambda row: (row.nfe, row.nfe_mean, row.relative), default=None),
            within,
            self.reference.solver_text,
            min(known, key=lambda row: row.relative or 0.0, default=None),
        )

    def __repr__(self) -> str:
        return f"Comparison({self.model}: {', '.join(row.label for row in self.rows)}, seed={self.seed})"

    def __str__(self) -> str:
        return self.table() if self.reference is None else f"{self.table()}\n{self.recommend()}"

    def table(self) -> str:
        """Return the table alone, without the recommendation."""
        head, rows = self._cells()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [f"{self.model}, {self.num_samples} samples, seed {self.seed}"]
        for cells in (head, *rows):
            rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            lines.append("  ".join(("  " + cells[0].ljust(widths[0]), *rest)).rstrip())
        if len(rows) <= _MATRIX:
            lines += ["mean distance between endpoints from the same noise", *self._matrix(widths[0])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        head, rows = self._cells()
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        advice = f"<p>{escape(str(self.recommend()))}</p>" if self.reference is not None else ""
        title = escape(f"{self.model}, {self.num_samples} samples, seed {self.seed}")
        title = f'<a href="{escape(self.url)}" target="_blank">{title}</a>' if self.url else title
        return f"<table><caption>{title}</caption><tr>{cells}</tr>{body}</table>{advice}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["solver", "nfe", "mean nfe", "solve ms", "total ms", "failed"]
        rows = [
            [row.label, str(row.nfe), f"{row.nfe_mean:.1f}", _ms(row.solve_s), _ms(row.total_s), str(row.failed)]
            for row in self.rows
        ]
        if self.reference is not None:
            head += ["off by", "of spread"]
            for row, cells in zip(self.rows, rows, strict=True):
                known = row.distance is not None and row.relative is not None
                cells += [f"{row.distance:.3g}", f"{100 * (row.relative or 0.0):.2g} %"] if known else ["-", "-"]
        return head, rows

    def _matrix(self, width: int) -> list[str]:
        labels = [row.label for row in self.rows]
        lines = [f"  {'':<{width}}" + _numbers(len(labels))]
        for number, (label, distances) in enumerate(zip(labels, self.distances, strict=True)):
            cells = "".join(f"  {distance:>10.3g}" for distance in distances)
            lines.append(f"  {label:<{width}}{cells}  [{number + 1}]")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values, without the samples; NaN is None."""
        return {
            "model": self.model,
            "seed": self.seed,
            "num_samples": self.num_samples,
            "rows": [vars(row) for row in self.rows],
            "distances": _plain(self.distances),
            "max_distances": _plain(self.max_distances),
            "reference": None if self.reference is None else self.reference.solver_text,
        }


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _numbers(count: int) -> str:
    return "".join(f"  {f'[{number + 1}]':>10}" for number in range(count))


def _plain(matrix: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if np.isfinite(value) else None for value in row] for row in matrix]


def compare(
    calls: Calls,
    model: str,
    solvers: Sequence[SolverLike] = CANDIDATES,
    num_samples: int = 256,
    *,
    reference: SolverLike | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    **options: Unpack[SampleOptions],
) -> Flow[Comparison]:
    """Run several solvers on the same noise, one after another, and compare their costs and endpoints.

    Args:
        model: Name of the model.
        solvers: Each a text such as ``"rk4-20"``, ``"ab3-12/shift(3)"`` or ``"dopri5@1e-6"``, or a mapping of
            options of `sample`.
        num_samples: How many samples each draws.
        reference: A high-accuracy solver, such as ``"dopri5@1e-7"``, that all are scored against;
            `Comparison.recommend` then says which solver the model needs.
        progress: True draws a progress bar on stderr; a function is called with the number of solvers done and
            their total.
        **options: See `SampleOptions`; they apply to all solvers, except that `max_step` applies only to those
            under error control, and `steps` (20 by default) only to fixed-step solvers given by their bare name.

    Raises:
        PathlineError: See `pathline.errors`.
        TypeError, ValueError: An option or the description of a solver is not allowed.
    """
    if isinstance(solvers, str) or not solvers:
        raise ValueError(f"solvers={solvers!r} is not allowed; use a list such as ['rk4-20', 'dopri5']")
    # The reference comes first: it takes longest, and its time bounds the estimate for the others.
    every = (*(() if reference is None else (reference,)), *solvers)
    return _compared(calls, model, every, num_samples, options, reference is not None, progress)


def _compared(
    calls: Calls,
    model: str,
    solvers: Sequence[SolverLike],
    num_samples: int,
    options: Mapping[str, Any],
    has_reference: bool,
    progress: bool | Callable[[int, int], None] | None,
) -> Flow[Comparison]:
    each_solver = [solver_options(solver) for solver in solvers]
    fixed = set[str]()
    if any(set(solver) == {"solver"} and str(solver["solver"]).isidentifier() for solver in each_solver):
        fixed = {info.name for info in (yield from calls.solvers()) if not info.adaptive}
    common = {"trace": "none", **options, "seed": chosen_seed(options.get("seed"))}
    steps = common.pop("steps", None) or _STEPS
    requests = [_settings(solver, common, steps, fixed) for solver in each_solver]
    costs = [len(solvers) - 1 or 1 if has_reference and place == 0 else 1 for place in range(len(solvers))]
    results: list[SampleResult] = []
    with following(True) if progress is True else nullcontext() as tell:
        forecast = Forecast()

        def overall(one: Progress) -> None:
            place = len(results)
            share = (sum(costs[:place]) + costs[place] * one.share) / sum(costs)
            if tell is not None:
                tell(replace(one, share=share, seconds_left=forecast.left(share)))

        for request in requests:
            results.append((yield from _sampled(calls, model, num_samples, request, overall if tell else None)))
            if callable(progress):
                progress(len(results), len(solvers))
    tight = results.pop(0) if has_reference else None
    mean, greatest = _distances(results)
    rows = tuple(_row(result, tight) for result in results)
    names = tuple(str(solver.get("solver")) for solver in each_solver[has_reference:])
    table = Comparison(model, results[0].seed, num_samples, rows, mean, greatest, tuple(results), tight, "", names)
    advice = None if tight is None else table.recommend()
    best = None if advice is None else advice.row or advice.closest
    first = results[0] if best is None else results[rows.index(best)]
    shown = [each.solver_text for each in (first, *([tight] if tight else results[1:2]))]
    settings = {**options, "model": model, "num_samples": num_samples, "seed": table.seed}
    return replace(table, url=page_url(calls.url, settings, *shown))


def _settings(
    solver: Mapping[str, Any], common: Mapping[str, Any], steps: int, fixed: Collection[str]
) -> dict[str, Any]:
    """Return the options of `sample` for one solver; one given by its bare name has steps unless it is adaptive."""
    bare = set(solver) == {"solver"} and solver["solver"] in fixed
    return {**common, **({"steps": steps} if bare else {}), **solver}


def _sampled(
    calls: Calls, model: str, num_samples: int, options: dict[str, Any], progress: Follow | None
) -> Flow[SampleResult]:
    """Draw samples; `max_step` is left out if the solver has fixed steps."""
    try:
        return (yield from calls.sample(model, num_samples, progress=progress, **options))
    except InvalidRequest as error:
        if [fault.get("field") for fault in error.errors] != ["max_step"]:
            raise
        rest = {name: value for name, value in options.items() if name != "max_step"}
        result = yield from calls.sample(model, num_samples, progress=progress, **rest)
        if "rtol" in result.solver:  # the longest step itself was at fault
            raise
        return result


def solver_options(solver: SolverLike) -> dict[str, Any]:
    """Return the options of `sample` that describe a solver, whose text the service reads."""
    if not isinstance(solver, (str, Mapping)):
        raise TypeError(f"{solver!r} is not a solver; use text such as 'rk4-20', or a mapping of options of sample()")
    return {"solver": solver} if isinstance(solver, str) else dict(solver)


def _row(result: SampleResult, reference: SampleResult | None) -> ComparisonRow:
    distance = relative = None
    if reference is not None:
        off = float(_distances([result, reference])[0][0, 1])
        spread = _spread(reference)
        distance = off if np.isfinite(off) else None
        relative = off / spread if np.isfinite(off) and spread > 0 else None
    return ComparisonRow(
        result.solver_text,
        result.nfe,
        float(result.nfe_per_sample.mean()),
        result.latency.solve_s,
        result.latency.total_s,
        len(result.failed),
        distance,
        relative,
    )


def _spread(result: SampleResult) -> float:
    """Return the root mean square distance of the samples from their mean."""
    done = result.samples[result.status_per_sample == "success"]
    if not len(done):
        return 0.0
    flat = done.reshape(len(done), -1).astype(np.float64)
    return float(np.sqrt(((flat - flat.mean(0)) ** 2).sum(1).mean()))


def _distances(results: Sequence[SampleResult]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and greatest distance of endpoints for each pair; NaN where no sample succeeded in both."""
    count = len(results)
    mean, greatest = np.zeros((count, count)), np.zeros((count, count))
    flat = [result.samples.reshape(len(result), -1).astype(np.float64) for result in results]
    for i in range(count):
        for j in range(i):
            both = (results[i].status_per_sample == "success") & (results[j].status_per_sample == "success")
            lengths = np.linalg.norm(flat[i][both] - flat[j][both], axis=1)
            mean[i, j] = mean[j, i] = lengths.mean() if len(lengths) else np.nan
            greatest[i, j] = greatest[j, i] = lengths.max() if len(lengths) else np.nan
    return mean, greatest
