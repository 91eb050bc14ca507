"""Several solvers on the same noise: what each costs, and how far apart they end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from pathline._request import draw_seed, sample_request
from pathline._result import SampleResult, solver_label

if TYPE_CHECKING:
    from pathline._core import Core, Flow

Spec = str | Mapping[str, Any]
"""How `compare` is told of a solver: a name, ``name-steps``, ``name@tolerance``, or a mapping of options."""

CANDIDATES = (
    *("euler-10", "euler-20", "euler-50", "midpoint-10", "midpoint-20", "rk4-5", "rk4-10", "rk4-20"),
    *("dopri5@1e-3", "dopri5@1e-5"),
)
"""What `pathline compare` tries where it is not told: from cheap to careful."""

REFERENCE = "dopri5@1e-7"
"""The tight solution that it measures by: the least tolerance that float32 models allow."""

_MATRIX = 6  # solvers up to which the distances of all pairs are printed
_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_]+)(?:-(?P<steps>\d+)|@(?P<tolerance>[0-9.eE+-]+))?")


@dataclass(frozen=True)
class ComparisonRow:
    """One solver of a comparison.

    Attributes:
        label: Short name of the solver as it was used.
        nfe: Velocity evaluations of the slowest sample.
        nfe_mean: Mean over the samples.
        solve_s: Seconds of solving, or None where the service did not say.
        total_s: Seconds in the service, or None.
        failed: How many samples did not reach the end.
        distance: Mean Euclidean distance of its endpoints to those of the reference from the same noise; None where
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
    """Which solver a model needs: the one of fewest network evaluations that is near enough to the reference.

    Attributes:
        row: The row of that solver; None where none of them is near enough.
        within: How near was asked for, as a share of the spread of the samples.
        reference: Label of the tight solution that was compared with.
        closest: The row that comes nearest.
    """

    row: ComparisonRow | None
    within: float
    reference: str
    closest: ComparisonRow | None

    def __str__(self) -> str:
        asked = f"within {100 * self.within:g} % of the samples' spread from {self.reference}"
        if self.row is not None and self.row.relative is not None:
            return (
                f"recommended: {self.row.label}, {self.row.nfe} NFE: the cheapest of these {asked} "
                f"(it is {100 * self.row.relative:.2g} % away)"
            )
        if self.closest is None or self.closest.relative is None:
            return f"no recommendation: no solver of these brought its samples to the end as {self.reference} did"
        return (
            f"no recommendation: none of these is {asked}; the closest is {self.closest.label} with "
            f"{100 * self.closest.relative:.2g} %. Try more steps, a tighter tolerance, or allow more"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A small table of solvers; `print` shows it.

    Attributes:
        model: Name of the model.
        seed: Seed of the common noise.
        num_samples: How many samples each solver drew.
        rows: One for each solver, in the order asked for.
        distances: ``distances[i, j]`` is the mean over the samples of the Euclidean distance between the endpoints of
            solver i and solver j from the same noise; samples that failed in either are left out.
        max_distances: The greatest such distance.
        results: The full results.
        reference: The tight solution from the same noise, or None where none was asked for.
    """

    model: str
    seed: int
    num_samples: int
    rows: tuple[ComparisonRow, ...]
    distances: np.ndarray
    max_distances: np.ndarray
    results: tuple[SampleResult, ...]
    reference: SampleResult | None = None

    def recommend(self, within: float = 0.01) -> Recommendation:
        """Return which of these solvers the model needs.

        Args:
            within: How far its samples may lie from the reference's on average, as a share of their spread (the root
                mean square distance from their mean). The default, 1 %, is far below what a sample's viewer can see.

        Raises:
            ValueError: There is no reference, or `within` is not above 0.
        """
        if self.reference is None:
            raise ValueError("there is no reference to measure by; call compare(..., reference='dopri5@1e-7')")
        if not within > 0:
            raise ValueError(f"within={within} is not allowed; use a share above 0, such as 0.01 for 1 %")
        known = [row for row in self.rows if row.relative is not None]
        near = [row for row in known if row.failed == 0 and row.relative is not None and row.relative <= within]
        return Recommendation(
            min(near, key=lambda row: (row.nfe, row.nfe_mean, row.relative), default=None),
            within,
            solver_label(self.reference.solver),
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
        said = f"<p>{escape(str(self.recommend()))}</p>" if self.reference is not None else ""
        title = escape(f"{self.model}, {self.num_samples} samples, seed {self.seed}")
        return f"<table><caption>{title}</caption><tr>{cells}</tr>{body}</table>{said}"

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
            "reference": None if self.reference is None else solver_label(self.reference.solver),
        }


def compare(
    core: Core,
    model: str,
    specs: Sequence[Spec],
    num_samples: int,
    seed: SupportsIndex | None,
    steps: int,
    options: Mapping[str, Any],
    reference: Spec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Flow[Comparison]:
    """Ask one solver after the other for the same samples (so that none slows another) and tabulate."""
    if isinstance(specs, str) or not specs:
        raise ValueError(f"solvers={specs!r} is not allowed; use a list such as ['rk4-20', 'dopri5']")
    parsed = [read_spec(spec) for spec in (*specs, *(() if reference is None else (reference,)))]
    bare = {spec["solver"] for spec in parsed if set(spec) == {"solver"}}
    adaptive: set[str] = set()
    if bare:
        known = yield from core.solvers()
        adaptive = {info.name for info in known if info.adaptive}
    chosen = draw_seed() if seed is None else seed
    results: list[SampleResult] = []
    for spec in parsed:
        fixed = set(spec) == {"solver"} and spec["solver"] not in adaptive
        given = {"trace": "none", **options, **spec, **({"steps": steps} if fixed else {})}
        results.append((yield from core.sample(sample_request(model, num_samples, chosen, given))))
        if progress is not None:
            progress(len(results), len(parsed))
    tight = None if reference is None else results.pop()
    mean, greatest = _distances(results)
    rows = tuple(_row(result, tight) for result in results)
    return Comparison(model, results[0].seed, num_samples, rows, mean, greatest, tuple(results), tight)


def read_spec(spec: Spec) -> dict[str, Any]:
    """Return the options that a description of a solver stands for.

    Raises:
        ValueError: It is not understood.
    """
    if not isinstance(spec, str):
        return dict(spec)
    match = _SPEC.fullmatch(spec.strip())
    try:
        if match is None:
            raise ValueError
        options: dict[str, Any] = {"solver": match["name"]}
        if match["steps"]:
            options["steps"] = int(match["steps"])
        if match["tolerance"]:
            options["rtol"] = options["atol"] = float(match["tolerance"])
    except ValueError:
        raise ValueError(
            f"solver {spec!r} is not understood; use a name (dopri5), a name with steps (rk4-20) "
            "or a name with a tolerance (dopri5@1e-8)"
        ) from None
    return options


def _row(result: SampleResult, reference: SampleResult | None) -> ComparisonRow:
    distance = relative = None
    if reference is not None:
        off = float(_distances([result, reference])[0][0, 1])
        spread = _spread(reference)
        distance = off if np.isfinite(off) else None
        relative = off / spread if np.isfinite(off) and spread > 0 else None
    return ComparisonRow(
        solver_label(result.solver),
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


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _numbers(count: int) -> str:
    return "".join(f"  {f'[{number + 1}]':>10}" for number in range(count))


def _plain(matrix: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if np.isfinite(value) else None for value in row] for row in matrix]
