"""The choice: the cheapest solver that keeps an error, or the most accurate one within NFE or milliseconds.

Budgets of requests, fresh comparisons and the reports of `models` and `training` all choose here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selection.error import Point
from selection.frontier import Curve, pareto, percent

USUAL_ERROR = 0.01
"""The error that is asked for where nobody says another: 1 % of the spread."""


class NoneFits(Exception):  # noqa: N818  (no fault: it says what could be met)
    """No measured solver is within a budget; the message says what could be met."""


@dataclass(frozen=True)
class BudgetLimits:
    """A budget. Any limit may be None, but not all.

    Attributes:
        max_error: p95 at the upper end of its interval, as a share of the spread.
        max_nfe: velocity evaluations of the slowest sample.
        max_ms: milliseconds of solving.
    """

    max_error: float | None = None
    max_nfe: int | None = None
    max_ms: float | None = None

    @property
    def text(self) -> str:
        """What a solver must do, in words."""
        costs = [(self.max_nfe, "NFE"), (self.max_ms, "ms")]
        within = " and ".join(f"{limit:g} {unit}" for limit, unit in costs if limit is not None)
        error = "" if self.max_error is None else f"keeps {percent(self.max_error)}"
        return " ".join(filter(None, [error, within and f"within {within}"]))

    def fits(self, point: Point, ms: float | None = None) -> bool:
        """Whether a solver is within all limits."""
        if self.max_nfe is not None and (point.adaptive or point.nfe_most > self.max_nfe):
            return False  # under error control, other samples may take more calls than those measured
        if self.max_ms is not None and ms is not None and ms > self.max_ms:
            return False
        return self.max_error is None or point.p95_high <= self.max_error


@dataclass(frozen=True)
class Evidence:
    """Measurements that a choice may rest on.

    Attributes:
        curve: the points, with the number of samples and their seed.
        stored: whether they are those of the checkpoint's file, rather than fresh ones.
        conditions: which conditions the samples had; empty for an unconditional model.
        own: whether those are the conditions that the choice is for.
    """

    curve: Curve
    stored: bool = True
    conditions: str = ""
    own: bool = True

    def describe(self) -> str:
        """Return what it rests on, in words."""
        source = "beforehand" if self.stored else "now"
        text = f"measured {source} on {self.curve.samples} samples of seed {self.curve.seed}"
        if self.conditions:
            text += f", with {self.conditions}{'' if self.own else ', not the conditions of this request'}"
        return text


@dataclass(frozen=True)
class Choice:
    """A solver chosen within limits.

    Attributes:
        point, evidence: the measurement of the solver.
        limits: the budget.
        why: the reason, in words.
        ms: milliseconds of solving that it should take; None if nobody knows.
        note: a remark that ends the reason; may be empty.
    """

    point: Point
    evidence: Evidence
    limits: BudgetLimits
    why: str
    ms: float | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """The choice in one sentence, the same wherever it is shown."""
        return f"{self.point.solver}: {self.reason}"

    @property
    def reason(self) -> str:
        """The sentence without the solver."""
        point = self.point
        return (
            f"{self.why}; {promise(point)} (p95 {percent(point.p95)}, interval "
            f"{percent(point.p95_low)} to {percent(point.p95_high)}), {self.evidence.describe()}"
            f"{self.note and '; ' + self.note}"
        )

    def document(self) -> dict[str, Any]:
        """Return the choice as responses show it."""
        return {
            **{name: value for name, value in vars(self.limits).items() if value is not None},
            "solver": self.point.solver,
            "nfe": self.point.nfe_most,
            "measured_nfe": self.point.nfe,
            "promised_error": self.point.p95_high,
            "promised_distance": self.point.p95_high * self.evidence.curve.spread,
            "p95": self.point.p95,
            "p95_low": self.point.p95_low,
            "samples": self.evidence.curve.samples,
            "stored": self.evidence.stored,
            "own_conditions": self.evidence.own,
            **({} if self.ms is None else {"predicted_ms": round(self.ms, 3)}),
            "reason": self.reason,
        }


def promise(point: Point) -> str:
    """Return what is promised of a solver, in the words that are used everywhere."""
    return f"95 % of samples end within {percent(point.p95_high)} of the spread from the exact ends of their paths"


def measured(evidence: Sequence[Evidence]) -> list[tuple[Point, Evidence]]:
    """Return one measurement of each solver, the cheapest first; of equals, the one of the lowest order.

    Of several, that under the conditions asked for decides, then the one on more samples, then the stored one.
    """
    best = dict[str, tuple[Point, Evidence]]()
    for source in sorted(evidence, key=lambda one: (one.own, one.curve.samples, one.stored)):
        best |= {point.solver: (point, source) for point in source.curve.points if point.order}
    return sorted(best.values(), key=lambda pair: (*pair[0].cost, pair[0].order))


def choose(
    evidence: Sequence[Evidence], limits: BudgetLimits, ms_of: Callable[[Point], float] | None = None
) -> list[Choice]:
    """Return the choices within limits, best first: the cheapest under `max_error`, else the most accurate.

    If some measurements have the conditions asked for, the choice rests on these alone.

    Args:
        evidence: stored and fresh measurements.
        limits: the budget.
        ms_of: milliseconds of solving with a measured solver, for `max_ms`.

    Raises:
        NoneFits: no solver was measured, or none is within the limits.
    """
    own = [one for one in evidence if one.own]
    pairs = measured(own or evidence)
    if not pairs:
        raise NoneFits("no solver that can be used was measured")
    offers = [Choice(point, source, limits, "", ms_of and ms_of(point)) for point, source in pairs]
    within = [offer for offer in offers if limits.fits(offer.point, offer.ms)]
    if not within:
        raise NoneFits(_could_be_met(limits, offers))
    if limits.max_error is not None:
        why = f"of {len(pairs)} measured solvers, the cheapest that keeps {percent(limits.max_error)}"
    else:
        within.sort(key=lambda offer: (offer.point.p95_high, offer.point.cost))
        why = f"the most accurate of {len(pairs)} measured solvers"
    costs = replace(limits, max_error=None).text
    why += costs and f" {costs}"
    return [Choice(offer.point, offer.evidence, limits, why, offer.ms) for offer in within]


def _could_be_met(limits: BudgetLimits, offers: Sequence[Choice]) -> str:
    """Say that no solver is within the limits, and what could be met."""
    cheap = replace(limits, max_error=None)
    affordable = [offer for offer in offers if cheap.fits(offer.point, offer.ms)]
    accurate = [offer for offer in offers if limits.max_error is not None and offer.point.p95_high <= limits.max_error]
    parts = [f"no measured solver {'is ' if limits.max_error is None else ''}{limits.text}"]
    if affordable and limits.max_error is not None:
        nearest = min(affordable, key=lambda offer: offer.point.p95_high)
        parts.append(f"the most accurate {cheap.text and cheap.text + ' '}is {_brief(nearest)}")
    if accurate:
        parts.append(f"the cheapest that keeps {percent(limits.max_error or 0)} is {_brief(accurate[0])}")
    if not affordable and not accurate:
        parts.append(f"the cheapest of all is {_brief(offers[0])}")
    return "; ".join(parts)


def _brief(offer: Choice) -> str:
    point = offer.point
    ms = "" if offer.ms is None else f", about {offer.ms:.3g} ms"
    return f"{point.solver} (keeps {percent(point.p95_high)}, {point.nfe_most} NFE{ms})"


def frontier_of(evidence: Sequence[Evidence]) -> list[Point]:
    """Return the Pareto-optimal points of all measurements."""
    return pareto(point for point, _ in measured(evidence))
