"""Several solvers on the same noise: what each costs, and how far apart they end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from pathline._comparison import Comparison, ComparisonRow
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

_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_]+)(?:-(?P<steps>\d+)|@(?P<tolerance>[0-9.eE+-]+))?")


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
    """Ask one solver after the other for the same samples (so that none slows another) and tabulate.

    `max_step` among the options is for the solvers under error control; the others have the steps that they name.
    """
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
        given = {"trace": "none", **options, **({"steps": steps} if fixed else {})}
        if "steps" in {**given, **spec}:
            given.pop("max_step", None)
        given |= spec
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
