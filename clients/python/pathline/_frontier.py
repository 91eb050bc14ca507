"""The frontier of a model: the cost of each solver, and its distance from the exact end of the path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from pathline import _plot
from pathline._show import html_table, percent, text_table
from pathline._typed import member_of, typed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 56, 14


@dataclass(frozen=True)
class FrontierPoint:
    """A solver, measured; errors are shares of the spread of the data.

    Attributes:
        solver: Its text, as `sample` takes it.
        nfe_most: Velocity evaluations of the slowest sample, which is what it costs.
        nfe: Mean over the samples.
        p50, p95: Quantiles of the endpoint error of the samples measured.
        p95_low, p95_high: Interval of p95, each end with 99 % confidence; the upper end is promised and ranked.
        worst: The largest endpoint error of the samples that reached the end.
        failed: How many samples did not.
        best: Whether no other solver is both cheaper and more accurate.
    """

    solver: str
    nfe_most: int
    nfe: float
    p50: float
    p95: float
    p95_low: float
    p95_high: float
    worst: float
    failed: int
    best: bool


@dataclass(frozen=True)
class FrontierCurve:
    """The solvers that were measured with one guidance.

    Attributes:
        guidance: None for an unconditional model.
        samples, seed: How many paths were solved, and the seed of their noise.
        spread: The spread that errors are shares of, in the model's own coordinates.
        complete: Whether every candidate was measured in the time allowed.
        points: All solvers, ordered by NFE.
    """

    guidance: float | None
    samples: int
    seed: int
    spread: float
    complete: bool
    points: tuple[FrontierPoint, ...]

    @property
    def best(self) -> tuple[FrontierPoint, ...]:
        """The solvers that no other beats, ordered by NFE."""
        return tuple(point for point in self.points if point.best)

    def table(self) -> str:
        """Return the best solvers as a text table."""
        rows = [["solver", "NFE", "p50", "p95", "promised", "worst"]]
        for point in self.best:
            errors = (point.p50, point.p95, point.p95_high, point.worst)
            rows.append([point.solver, str(point.nfe_most), *map(percent, errors)])
        return "\n".join(text_table(rows))

    def chart(self) -> str:
        """Return all solvers as a text chart with logarithmic axes: `o` is one of the best, `.` any other."""
        shown = [point for point in self.points if 0 < point.p95_high < math.inf and 0 < point.nfe < math.inf]
        if not shown:
            return ""
        x = [math.log10(point.nfe) for point in shown]
        y = [math.log10(point.p95_high) for point in shown]
        left, right, low, high = min(x), max(x), min(y), max(y)
        grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
        for across, up, point in sorted(zip(x, y, shown, strict=True), key=lambda place: place[2].best):
            column = round((across - left) / ((right - left) or 1) * (_WIDTH - 1))
            row = round((high - up) / ((high - low) or 1) * (_HEIGHT - 1))
            grid[row][column] = "o" if point.best else "."
        ends = {0: f"{10**high:.1e}", _HEIGHT - 1: f"{10**low:.1e}"}
        lines = [f"{ends.get(row, ''):>8} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
        scale = f"{10**left:g}".ljust(_WIDTH - 8) + f"{10**right:.0f}".rjust(8)
        return "\n".join(["p95", *lines, f"{'':>8} +{'-' * _WIDTH}", f"{'':>10}{scale} NFE"])

    @property
    def label(self) -> str:
        """The guidance as text; empty for an unconditional model."""
        return "" if self.guidance is None else f"guidance {self.guidance:g}"

    def __str__(self) -> str:
        head = self.label and f"{self.label}\n"
        tail = "" if self.complete else "\nnot all solvers were measured in the time allowed"
        return f"{head}{self.chart()}\n\n{self.table()}{tail}"


@dataclass(frozen=True, repr=False)
class Frontier:
    """The frontier of a model's version, which a notebook shows as a table of the best solvers.

    Attributes:
        model: Name of the model.
        version: Its version.
        checkpoint: Digest of its files.
        reference: The solution that was taken as exact.
        conditions: The conditions of the samples; empty for an unconditional model.
        curves: One for each measured guidance.
        fields: All members of the service's description.
    """

    model: str
    version: int
    checkpoint: str
    reference: str
    conditions: str
    curves: tuple[FrontierCurve, ...]
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        measured = sum(len(curve.points) for curve in self.curves)
        best = sum(len(curve.best) for curve in self.curves)
        return f"Frontier({self.model} v{self.version}: {measured} solvers measured, {best} on the frontier)"

    def __str__(self) -> str:
        return "\n\n".join([self._title(), *map(str, self.curves)])

    def _title(self) -> str:
        conditions = f"; conditions: {self.conditions}" if self.conditions else ""
        measure = f"endpoint error as a share of the spread, against {self.reference}"
        return f"{self.model} v{self.version}: {measure}{conditions}"

    def _repr_html_(self) -> str:
        rows = [
            [
                "" if curve.guidance is None else f"{curve.guidance:g}",
                *(point.solver, str(point.nfe_most), percent(point.p95), percent(point.p95_high)),
            ]
            for curve in self.curves
            for point in curve.best
        ]
        return html_table(escape(self._title()), ("guidance", "solver", "nfe", "p95", "promised"), rows)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row for each measured solver and guidance; needs pandas."""
        rows = [{"guidance": curve.guidance, **vars(point)} for curve in self.curves for point in curve.points]
        return _plot.needed("pandas", "to_dataframe").DataFrame(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each solver over its NFE; a line joins the best ones. Needs matplotlib.

        Args:
            ax: Where to draw; by default a new figure.
        """
        title = f"{self.model} v{self.version}, against {self.reference}"
        return _plot.frontier({curve.label: curve.points for curve in self.curves}, ax, title)


def frontier_of(document: Any) -> Frontier:
    """Read the response of ``/v1/models/{name}/frontier``."""
    curves = (
        typed(FrontierCurve, curve, points=tuple(typed(FrontierPoint, point) for point in curve["points"]))
        for curve in member_of(document, "curves", "list")
    )
    return typed(Frontier, document, curves=tuple(curves))
