"""Comparison of solvers on one model: the service measures them, and says which one the model needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pathline import _plot
from pathline._calls import Calls
from pathline._events import MEDIA_TYPE
from pathline._fields import FrontierOptions
from pathline._files import save
from pathline._frontier import FrontierPoint
from pathline._request import Request, operation_request
from pathline._show import html_table, page_url, percent, text_table
from pathline._typed import member_of, typed, understood

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack


@dataclass(frozen=True)
class ComparisonRow(FrontierPoint):
    """One solver, measured now or beforehand.

    Attributes:
        samples, seed: How many samples were measured, and the seed of their noise.
        conditions: Which conditions they had; empty for an unconditional model.
        own_conditions: Whether those are the conditions of this comparison.
        stored: Whether it was measured beforehand, rather than now.
        ms: Milliseconds that solving for `num_samples` should take at the service's current speed.
        fields: All members of the service's answer.
    """

    samples: int
    seed: int
    conditions: str
    own_conditions: bool
    stored: bool
    ms: float
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


_COLUMNS = tuple(entry.name for entry in fields(ComparisonRow) if entry.name != "fields")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A table of measured solvers, stored and fresh ones, which `print` shows with the service's verdict.

    Attributes:
        model: Name of the model.
        version: Its version.
        seed: Seed of the noise of the fresh measurements.
        num_samples: How many samples each of these has.
        reference: The solution that stood for the exact ends in them.
        rows: One for each solver, the cheapest first.
        asked: The solvers that were asked for; empty for the service's candidates.
        choice: The chosen solver and what is promised of it, as `SampleResult.budget` has it; empty if none is within
            the budget.
        verdict: The choice in one sentence, or what could be met.
        tuned: How to get tuned plans and what they could gain; empty if there is nothing to say.
        complete: Whether every candidate was measured within the time limit.
        url: Link to the service's page with the chosen solver.
        fields: All members of the service's answer.
    """

    model: str
    version: int
    seed: int
    num_samples: int
    reference: str
    rows: tuple[ComparisonRow, ...]
    asked: tuple[str, ...]
    choice: Mapping[str, Any]
    verdict: str
    tuned: str
    complete: bool
    url: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> ComparisonRow:
        if not isinstance(key, str):
            return self.rows[key]
        row = next((row for row in self.rows if row.solver == key), None)
        if row is None:
            raise KeyError(f"{key!r} was not measured; use one of {', '.join(row.solver for row in self.rows)}")
        return row

    @property
    def shown(self) -> tuple[ComparisonRow, ...]:
        """The rows that are worth showing: those asked for, the chosen one, and those that no other beats."""
        chosen = self.choice.get("solver")
        return tuple(row for row in self.rows if row.best or row.solver in self.asked or row.solver == chosen)

    def recommend(self, within: float = 0.01) -> ComparisonRow | None:
        """Return the cheapest solver that promises an error; None if none does.

        Args:
            within: Endpoint error that 95 % of samples end within, as a share of the spread.

        Raises:
            ValueError: `within` is not above 0.
        """
        if not within > 0:
            raise ValueError(f"within={within} is not allowed; use a share above 0, such as 0.01 for 1 %")
        own = [row for row in self.rows if row.own_conditions] or self.rows
        return next((row for row in own if row.p95_high <= within), None)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row for each solver; needs pandas."""
        return _plot.needed("pandas", "to_dataframe").DataFrame(self.to_dict()["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return the table and the verdict as plain values."""
        names = ("model", "version", "seed", "num_samples", "reference", "verdict", "tuned", "complete")
        rows = [{name: getattr(row, name) for name in _COLUMNS} for row in self.rows]
        return {**{name: getattr(self, name) for name in names}, "choice": dict(self.choice) or None, "rows": rows}

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the table to a file: .csv, .json, .npz or .npy (the promised errors), or .png (the figure of `plot`).

        Raises:
            ValueError: The extension is none of these.
            ImportError: A figure needs matplotlib.
            OSError: The file cannot be written.
        """
        columns = {name: np.array([getattr(row, name) for row in self.rows]) for name in _COLUMNS}
        arrays = {"p95_high": columns["p95_high"], "nfe_most": columns["nfe_most"]}
        return save(Path(path), arrays, self.to_dict(), columns, lambda: _plot.png(self.plot))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the promised error over the NFE of each solver, stored and fresh ones; needs matplotlib.

        Args:
            ax: Where to draw; by default a new figure.
        """
        kinds = {"measured beforehand": True, "measured now": False}
        groups = {name: [row for row in self.rows if row.stored is stored] for name, stored in kinds.items()}
        return _plot.frontier({name: rows for name, rows in groups.items() if rows}, ax, self._title())

    def __repr__(self) -> str:
        return f"Comparison({self.model}: {len(self.rows)} solvers, seed={self.seed})"

    def __str__(self) -> str:
        return "\n".join([self.table(), self.verdict, *([self.tuned] if self.tuned else [])])

    def table(self) -> str:
        """Return the table alone, without the verdict."""
        lines = [self._title(), *(f"  {line}" for line in text_table([_HEAD, *map(_cells, self.shown)]))]
        more = len(self.rows) - len(self.shown)
        return "\n".join([*lines, *([f"  and {more} that cheaper or more accurate ones beat"] if more else [])])

    def _title(self) -> str:
        limit = "" if self.complete else "; time ran out before all were measured"
        return f"{self.model} v{self.version}: endpoint errors as shares of the spread, against {self.reference}{limit}"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        title = f'<a href="{escape(self.url)}" target="_blank">{escape(self._title())}</a>'
        advice = "".join(f"<p>{escape(text)}</p>" for text in (self.verdict, self.tuned) if text)
        return html_table(title, _HEAD, list(map(_cells, self.shown))) + advice


_HEAD = ("solver", "nfe", "p50", "p95", "interval of p95", "worst", "failed", "ms", "measured")


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    source = f"{'before' if row.stored else 'now'}, {row.samples} samples{'' if row.own_conditions else ' *'}"
    interval = f"{percent(row.p95_low)} to {percent(row.p95_high)}"
    errors = (percent(row.p50), percent(row.p95), interval, percent(row.worst))
    return (row.solver, str(row.nfe_most), *errors, str(row.failed), f"{row.ms:.3g}", source)


async def compare(
    calls: Calls,
    model: str,
    solvers: Sequence[str] | None = None,
    num_samples: int | None = None,
    *,
    progress: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Unpack[FrontierOptions],
) -> Comparison:
    """Measure solvers on a model, from the same noise, and say which one it needs.

    The service measures them one after another, and joins them with what was measured beforehand.

    Args:
        model: Name of the model.
        solvers: Each a text such as ``"rk4-20"``, ``"ab3-12/shift(3)"`` or ``"dopri5@1e-6"``; by default the
            service's candidates, cheapest first.
        num_samples: How many samples each draws, at least 90; by default 512.
        progress: Called with each point as it is measured: its solver, NFE and errors.
        **options: See `FrontierOptions`: the `budget` that the verdict is for (by default an error of 1 %), `seed`,
            `condition`, `guidance`, `timeout_s`.

    Raises:
        PathlineError: See `pathline.errors`.
        TypeError, ValueError: An option is not allowed.
    """
    if isinstance(solvers, str) or (solvers is not None and not solvers):
        raise ValueError(f"solvers={solvers!r} is not allowed; use a list such as ['rk4-20', 'dopri5@1e-5']")
    own = {"solvers": None if solvers is None else list(solvers), "num_samples": num_samples}
    request = operation_request("frontier", model, own, options, FrontierOptions, calls.url)
    documents = dict[str, Mapping[str, Any]]()

    def note(event: tuple[str, Mapping[str, Any]]) -> None:
        name, document = event
        documents[name] = document
        if name == "point" and progress is not None:
            progress(document)

    await calls.follow(request, MEDIA_TYPE, lambda name, document: (name, document), note)
    return _comparison(request, documents, calls.url)


def _comparison(request: Request, documents: Mapping[str, Mapping[str, Any]], url: str) -> Comparison:
    with understood("the response of a comparison"):
        start, last = member_of(documents, "start"), member_of(documents, "completed")
        rows = tuple(typed(ComparisonRow, row) for row in member_of(last, "points", "list"))
        choice = member_of(last, "choice", "Mapping | None") or {}
        settings = {**request.settings, "model": start["model"], "seed": start["seed"]}
        solver = member_of(choice, "solver", "str") if choice else rows[-1].solver if rows else start["reference"]
        asked = tuple(request.settings.get("solvers") or ())
        link = page_url(url, settings, solver)
        return typed(Comparison, {**start, **last}, rows=rows, asked=asked, choice=choice, url=link, fields=last)
