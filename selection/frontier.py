"""The frontier of a checkpoint, `frontier.json`: cost and endpoint error of each measured solver.

A checkpoint is served even if the file is missing or cannot be used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.checkpoint.bound import SHA256, Bound, BoundFileError
from models.checkpoint.card import Card
from models.checkpoint.plans import PLANS_FILE
from models.frozen import Frozen
from models.regular import open_inside
from selection.error import Point

FRONTIER_FILE = "frontier.json"

_MAX_POINTS, _MAX_CURVES = 10_000, 100


class Curve(Frozen):
    """The measurements of all solvers with one guidance.

    Attributes:
        guidance: guidance strength, for a conditional model; None for an unconditional one.
        samples, seed: number of paths solved, and the seed of their noise.
        spread: root mean square distance of the exact ends from their mean; the unit of errors.
        complete: whether every candidate was tried; False if time ran out first.
        points: one for each solver, by NFE.
    """

    guidance: float | None = Field(default=None, allow_inf_nan=False)
    samples: int = Field(ge=2)
    seed: int = Field(ge=0)
    spread: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    complete: bool = True
    points: Annotated[tuple[Point, ...], Field(max_length=_MAX_POINTS)]

    def has_paths_of(self, other: Curve) -> bool:
        """Return whether another curve was measured on the same paths, so that errors can be compared."""
        same = (self.guidance, self.samples, self.seed) == (other.guidance, other.samples, other.seed)
        return same and math.isclose(self.spread, other.spread, rel_tol=1e-6)


class StoredFrontier(Bound):
    """The frontier of a checkpoint.

    Attributes:
        format: version of this format.
        plans_sha256: hash of `plans.json` at the time of measuring; None if there was none.
        reference: the solver of the exact ends.
        conditions: which conditions the samples had; empty for an unconditional model.
        sizes: sizes of the free axes of the samples; not written if there are none.
        libraries: versions of the libraries that measured it.
        curves: one for each guidance.
    """

    file_name = FRONTIER_FILE
    unwritten = ("sizes",)

    format: Literal[2] = 2
    plans_sha256: str | None = Field(default=None, pattern=SHA256)
    reference: str = Field(max_length=200)
    conditions: str = Field(default="", max_length=200)
    sizes: dict[str, int] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)
    curves: Annotated[tuple[Curve, ...], Field(min_length=1, max_length=_MAX_CURVES)]

    @model_validator(mode="after")
    def _guidances_differ(self) -> Self:
        if len({curve.guidance for curve in self.curves}) < len(self.curves):
            raise ValueError("curves: two have the same guidance")
        return self

    def curve(self, guidance: float | None) -> Curve | None:
        """Return the curve of a guidance; for a conditional model None means 1."""
        for curve in self.curves:
            if curve.guidance == guidance or {curve.guidance, guidance} == {None, 1}:
                return curve
        return None


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the Pareto-optimal points, the cheapest first: any cheaper point has a larger p95."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: point.cost):
        if not best or point.p95_high < best[-1].p95_high:
            best.append(point)
    return best


def plans_hash(folder: Path) -> str | None:
    """Return the hash of a checkpoint's tuned plans; None if it has none, or they cannot be read."""
    try:
        with open_inside(folder, PLANS_FILE) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def is_tuned(solver: str) -> bool:
    """Whether the text of a solver names a tuned one: a learned plan, or a method on a tuned grid."""
    return solver.startswith("tuned") or "/tuned" in solver


def read_frontier(folder: Path, card: Card) -> StoredFrontier | None:
    """Read the frontier of a checkpoint; None if it has none. Points of plans that have changed are left out.

    Args:
        folder: folder of the checkpoint.
        card: its card, which has the hash of the weights.

    Raises:
        BoundFileError: it is damaged, or belongs to other weights.
    """
    frontier = StoredFrontier.read(folder, card.weights_sha256)
    if frontier is None or frontier.plans_sha256 == plans_hash(folder):
        return frontier
    stock = [
        curve.model_copy(update={"points": tuple(point for point in curve.points if not is_tuned(point.solver))})
        for curve in frontier.curves
    ]
    return frontier.model_copy(update={"curves": tuple(stock)})


class FrontierFile:
    """The frontier file of a loaded checkpoint, which may be written long after the weights were loaded.

    The file is read again only when it has changed, so a look-up usually costs two calls of `stat`.

    Attributes:
        folder: the checkpoint.
    """

    def __init__(self, folder: Path, card: Card) -> None:
        """Keep the path; nothing is read yet."""
        self.folder, self._card = folder, card
        self._read: tuple[object, StoredFrontier | None, str] = (None, None, "")

    def now(self) -> tuple[StoredFrontier | None, str]:
        """Return the current frontier or None, and why an existing file cannot be used; from any thread."""
        state = tuple(_state(self.folder / name) for name in (FRONTIER_FILE, PLANS_FILE))
        before, frontier, fault = self._read
        if state != before:
            frontier, fault = None, ""
            try:
                frontier = read_frontier(self.folder, self._card)
            except BoundFileError as error:
                fault = str(error).removeprefix(f"{self.folder}/")  # clients need not know the path
            self._read = (state, frontier, fault)
        return frontier, fault


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def store_frontier(folder: Path, card: Card, new: StoredFrontier) -> str:
    """Merge a new frontier into that of the checkpoint, and return a line that says what became of both.

    If they were measured on different paths, the more complete one is kept; at other sizes of free axes, the new one.

    Args:
        folder: folder of the checkpoint.
        card: its card, which has the hash of the weights.
        new: the measurements to add.

    Raises:
        BoundFileError: writing failed, or there would be too many curves; an earlier file is unchanged.
    """
    path = folder / FRONTIER_FILE
    try:
        old = read_frontier(folder, card)
    except BoundFileError:
        return f"written to {new.write(folder)}, in place of one that cannot be used"
    if old is None:
        return f"written to {new.write(folder)}"
    if (both := merged(old, new)) is not None:
        if len(both.curves) > _MAX_CURVES:
            raise BoundFileError(
                f"{path}: has {_MAX_CURVES} strengths of guidance already; delete it to measure others"
            )
        both.write(folder)
        before, after, total = (sum(len(curve.points) for curve in file.curves) for file in (old, new, both))
        return f"merged into {path}: {after} solvers measured now, {before} before, {total} together"
    if old.sizes == new.sizes and _worth(old) > _worth(new):
        return (
            f"{path} is unchanged: it was measured on other paths, and is more complete; raise --seconds, or delete it"
        )
    return f"written to {new.write(folder)}, in place of one measured on other paths"


def merged(old: StoredFrontier, new: StoredFrontier) -> StoredFrontier | None:
    """Return an earlier frontier with new measurements, which replace those of the same solvers.

    A curve is complete if either was. Where plans have changed, the earlier curve lacks theirs.

    Returns:
        Both in one; None if they were measured on different paths, so that errors cannot be compared.
    """
    if (old.reference, old.conditions, old.sizes) != (new.reference, new.conditions, new.sizes):
        return None
    has_plans = new.plans_sha256 in (None, old.plans_sha256)
    curves = {
        curve.guidance: curve.model_copy(update={"complete": curve.complete and has_plans}) for curve in old.curves
    }
    for curve in new.curves:
        before = curves.get(curve.guidance, curve)
        if not before.has_paths_of(curve):
            return None
        points = {point.solver: point for point in (*before.points, *curve.points)}
        both = tuple(sorted(points.values(), key=lambda point: point.cost))
        complete = before.complete or curve.complete
        curves[curve.guidance] = curve.model_copy(update={"points": both, "complete": complete})
    return new.model_copy(update={"curves": tuple(curves.values())})


def _worth(frontier: StoredFrontier) -> tuple[bool, int, int]:
    """Return a key that is larger for a more complete frontier."""
    complete = all(curve.complete for curve in frontier.curves)
    measured = sum(len(curve.points) for curve in frontier.curves)
    samples = min(curve.samples for curve in frontier.curves)
    return (True, samples, 0) if complete else (False, measured, samples)


def percent(share: float) -> str:
    """Return a share as text, such as `0.74 %`."""
    return f"{100 * share:.0f} %" if share >= 1 else f"{100 * share:.2g} %"


def table(curve: Curve, points: Sequence[Point]) -> str:
    """Return points as a text table."""
    lines = [f"{'solver':<24} {'NFE':>7} {'p50':>9} {'p95':>9} {'interval of p95':>20} {'worst':>9}"]
    for p in points:
        interval = f"{percent(p.p95_low)} to {percent(p.p95_high)}"
        lines.append(
            f"{p.solver:<24} {p.nfe_most:>7} {percent(p.p50):>9} {percent(p.p95):>9} {interval:>20} "
            f"{percent(p.worst):>9}"
        )
    return "\n".join([*lines, f"endpoint errors, as shares of the spread; {curve.samples} samples, seed {curve.seed}"])
