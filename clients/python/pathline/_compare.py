"""Several solvers on the same noise: what each costs, and how far apart they end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from pathline._request import draw_seed, sample_request
from pathline._result import SampleResult, solver_label

if TYPE_CHECKING:
    from pathline._core import Core, Flow

Spec = str | Mapping[str, Any]
"""How `compare` is told of a solver: a name, ``name-steps``, ``name@tolerance``, or a mapping of options."""

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
    """

    label: str
    nfe: int
    nfe_mean: float
    solve_s: float | None
    total_s: float | None
    failed: int


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
    """

    model: str
    seed: int
    num_samples: int
    rows: tuple[ComparisonRow, ...]
    distances: np.ndarray
    max_distances: np.ndarray
    results: tuple[SampleResult, ...]

    def __repr__(self) -> str:
        return f"Comparison({self.model}: {', '.join(row.label for row in self.rows)}, seed={self.seed})"

    def __str__(self) -> str:
        labels = [row.label for row in self.rows]
        width = max(map(len, [*labels, "solver"]))
        lines = [
            f"{self.model}, {self.num_samples} samples, seed {self.seed}",
            f"  {'solver':<{width}}  {'nfe':>6}  {'mean nfe':>8}  {'solve ms':>9}  {'total ms':>9}  {'failed':>6}",
        ]
        lines += [
            f"  {row.label:<{width}}  {row.nfe:>6}  {row.nfe_mean:>8.1f}  {_ms(row.solve_s):>9}  {_ms(row.total_s):>9}"
            f"  {row.failed:>6}"
            for row in self.rows
        ]
        lines += ["mean distance between endpoints from the same noise", f"  {'':<{width}}" + _numbers(len(labels))]
        for number, (label, distances) in enumerate(zip(labels, self.distances, strict=True)):
            cells = "".join(f"  {distance:>10.3g}" for distance in distances)
            lines.append(f"  {label:<{width}}{cells}  [{number + 1}]")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values, without the samples; NaN is None."""
        return {
            "model": self.model,
            "seed": self.seed,
            "num_samples": self.num_samples,
            "rows": [vars(row) for row in self.rows],
            "distances": _plain(self.distances),
            "max_distances": _plain(self.max_distances),
        }


def compare(
    core: Core,
    model: str,
    specs: Sequence[Spec],
    num_samples: int,
    seed: SupportsIndex | None,
    steps: int,
    options: Mapping[str, Any],
) -> Flow[Comparison]:
    """Ask one solver after the other for the same samples (so that none slows another) and tabulate."""
    if isinstance(specs, str) or not specs:
        raise ValueError(f"solvers={specs!r} is not allowed; use a list such as ['rk4-20', 'dopri5']")
    parsed = [read_spec(spec) for spec in specs]
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
    mean, greatest = _distances(results)
    return Comparison(
        model, results[0].seed, num_samples, tuple(_row(result) for result in results), mean, greatest, tuple(results)
    )


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


def _row(result: SampleResult) -> ComparisonRow:
    return ComparisonRow(
        solver_label(result.solver),
        result.nfe,
        float(result.nfe_per_sample.mean()),
        result.latency.solve_s,
        result.latency.total_s,
        len(result.failed),
    )


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
