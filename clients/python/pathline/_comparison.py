"""What a comparison of solvers found: a small table that prints, and which solver it recommends."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from pathline._result import SampleResult, solver_label

_MATRIX = 6  # solvers up to which the distances of all pairs are printed


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


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _numbers(count: int) -> str:
    return "".join(f"  {f'[{number + 1}]':>10}" for number in range(count))


def _plain(matrix: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if np.isfinite(value) else None for value in row] for row in matrix]
