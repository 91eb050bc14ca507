"""Classifier-free guidance: velocities with and without a condition, combined to strengthen it.

    v = v(x, t, null) + g (v(x, t, condition) - v(x, t, null))

Ho & Salimans, "Classifier-free diffusion guidance", 2022; for velocities: Zheng et al., "Guided flows for generative
modeling and decision making", 2023. g = 1 is the plain conditional model and g = 0 the unconditional one, so both cost
one network row; every other g costs two.

Several terms weigh velocities under different conditions, as in Liu et al., "Compositional visual generation with
composable diffusion models", 2022: v = sum of w_k v(x, t, c_k), with weights that sum to 1. A term may drop conditions
or have its own: the posterior of n independent observations has n terms of weight 1 and the prior with weight 1 - n
(Geffner et al., "Compositional score modeling for simulation-based inference", 2023). It is computed from the last
term: v_n + sum of w_k (v_k - v_n). Guidance can be limited to an interval of t, outside of which all conditions
apply (Kynkaanniemi et al., "Applying guidance in a limited interval improves sample and distribution quality", 2024).

Two corrections, sample by sample, need a term with all conditions; v_c is its velocity:

- Projection, before the sum: every other velocity v_u is replaced by its optimised multiple s v_u, with
  s = <v_c, v_u> / |v_u|^2 (Fan et al., "CFG-Zero*: improved classifier-free guidance for flow matching models", 2025,
  arXiv 2503.18886). Of two terms this is v = (1 - g) s v_u + g v_c. That paper's other part, a velocity of zero in the
  first steps, is not done here.
- Rescaling, after the sum: v (phi std(v_c) / std(v) + 1 - phi), with the standard deviation over the numbers of the
  sample (Lin et al., "Common diffusion noise schedules and sample steps are flawed", 2023, arXiv 2305.08891, equations
  15 and 16, with phi = `rescale`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from models.conditions import ConditionError, NamedConditions
from models.velocity import Condition, VelocityField

MAX_TERMS = 8
NO_NULL = "guidance other than 1 needs a null, and this model was trained without a null{}leave guidance out"


@dataclass(frozen=True)
class Term:
    """One velocity in the weighted sum.

    Attributes:
        weight: its weight.
        without: the conditions that are replaced by their nulls, or by the request's negative conditions.
        own: the conditions that are replaced by its own.
    """

    weight: float
    without: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether it has all conditions of the request."""
        return not (self.without or self.own)


@dataclass(frozen=True)
class Guidance:
    """A weighted sum of velocities under different conditions.

    Attributes:
        terms: in the order in which they are summed.
        interval: the times, both inclusive, between which it applies; before and after, all conditions apply.
        projection: whether velocities are projected, see above.
        rescale: phi of the formula above, from 0 to 1; 0 for no rescaling.
    """

    terms: tuple[Term, ...]
    interval: tuple[float, float] | None = None
    projection: bool = False
    rescale: float = 0.0

    @property
    def whole(self) -> int | None:
        """The index of the term with all conditions; None if there is none."""
        return next((k for k, term in enumerate(self.terms) if term.whole), None)

    @property
    def correction(self) -> str:
        """What makes it more than a weighted sum: `projection` or `rescale`; empty if nothing does."""
        return "projection" if self.projection else "rescale" if self.rescale > 0 else ""

    @property
    def plain(self) -> bool:
        """Whether there is no guidance: one term with all conditions of the request."""
        return len(self.terms) == 1 and self.terms[0].whole


@lru_cache(maxsize=1024)
def guidance_of(strength: float, names: tuple[str, ...]) -> Guidance:
    """Return the guidance with the strength g of the formula above, for conditions of these names."""
    null = frozenset(names)
    if strength == 1:
        return Guidance((Term(1.0),))
    if strength == 0:
        return Guidance((Term(1.0, null),))
    return Guidance((Term(strength), Term(1.0 - strength, null)))


def document_of(guidance: Guidance | None, null: Collection[str]) -> float | dict[str, Any] | None:
    """Return the guidance as a request writes it, given the conditions that "null" leaves out.

    The values of a term's own conditions are null.
    """
    if guidance is None:
        return None
    strength = guidance.terms[0].weight if guidance.whole == 0 else 0.0
    if guidance == guidance_of(strength, tuple(null)):
        return strength
    terms = [
        {
            "weight": t.weight,
            **({"drop": sorted(t.without)} if t.without else {"condition": "all"}),
            **({"conditions": dict.fromkeys(sorted(t.own))} if t.own else {}),
        }
        for t in guidance.terms
    ]
    more = {"interval": guidance.interval, "projection": guidance.projection, "rescale": guidance.rescale}
    return {"terms": terms} | {name: value for name, value in more.items() if value}


def network_rows(guidance: Guidance | None) -> int:
    """Return the most network rows of one evaluation with this guidance: one for each term. None means no guidance."""
    return 1 if guidance is None else len(guidance.terms)


@dataclass(frozen=True)
class Further:
    """Velocities besides the first one of each state.

    Attributes:
        states: (m,) the state that each belongs to.
        weight: (m,) the weight of each, in the dtype of the velocities.
    """

    states: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Correction:
    """Some rows of a call and, for each, the row with all conditions of the same state.

    Attributes:
        rows: (m,) rows to project, or states to rescale.
        source: (m,) the rows with all conditions.
        share: (m,) phi of rescaling; None for a projection.
    """

    rows: Tensor
    source: Tensor
    share: Tensor | None = None


def combined(
    v: Tensor,
    states: int,
    further: Sequence[Further],
    projection: Correction | None = None,
    rescaling: Correction | None = None,
) -> Tensor:
    """Return the guided velocities (states, *event), by elementwise operations alone: each state for itself.

    Args:
        v: the velocities of one call: the last term of each state, then the terms of each of `further`.
        states: number of states.
        further: the terms before the last, in their order.
        projection, rescaling: the corrections of the module's formulas, where requested.
    """
    if projection is not None:
        v = _projected(v, projection)
    base = v[:states]
    if not further:
        return base
    total, done = base.clone(), states
    for terms in further:
        w = _over(terms.weight, v)
        last = base[terms.states]
        total[terms.states] = total[terms.states] + w * (v[done : done + len(terms.states)] - last)
        done += len(terms.states)
    return total if rescaling is None else _rescaled(total, v, rescaling)


def _projected(v: Tensor, at: Correction) -> Tensor:
    """Multiply velocities v_u by <v_c, v_u> / |v_u|^2, in float64."""
    with_all, without = (v[rows].double().flatten(1) for rows in (at.source, at.rows))
    square = _sums(without * without)
    factor = torch.where(square > 0, _sums(with_all * without) / square, torch.zeros_like(square))
    return v.index_copy(0, at.rows, v[at.rows] * _over(factor.to(v.dtype), v))


def _rescaled(total: Tensor, v: Tensor, at: Correction) -> Tensor:
    """Multiply velocities by phi std(v_c) / std(v) + 1 - phi, in float64."""
    assert at.share is not None  # noqa: S101
    target, own = _variances(v[at.source]), _variances(total[at.rows])
    ratio = torch.where(own > 0, target / own, torch.ones_like(own)).sqrt()
    factor = at.share * ratio + (1 - at.share)
    total[at.rows] = total[at.rows] * _over(factor.to(v.dtype), v)
    return total


def _variances(v: Tensor) -> Tensor:
    rows = v.double().flatten(1)
    off = rows - (_sums(rows) / rows.shape[1])[:, None]
    return _sums(off * off)


def _sums(rows: Tensor) -> Tensor:
    """Return the sum of each row (n, numbers), by halves: a library's reduction may add in another order in a batch."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        folded = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat((folded, rows[:, 2 * half :]), dim=1) if rows.shape[1] % 2 else folded
    return rows[:, 0]


def guided(
    velocity: VelocityField, takes: NamedConditions, x: Tensor, t: Tensor, condition: Condition, strength: Tensor
) -> Tensor:
    """Evaluate a conditional velocity with a guidance for each row.

    Both velocities of a guided row come from the same network call and are combined by elementwise operations, so over
    a field with independent rows a row's bits depend on that row alone, as they do without guidance.

    Args:
        velocity: the conditional field.
        takes: what it is conditioned on.
        x: states (rows, *event).
        t: times (rows,), in the dtype of x.
        condition: one row for each state.
        strength: g of each row, finite, (rows,).

    Returns:
        The velocities, (rows, *event).

    Raises:
        ConditionError: the model was trained without a null.
    """
    plain = strength == 1
    if bool(plain.all()):
        return velocity(x, t, condition)
    if not takes.nullable:
        raise ConditionError(NO_NULL.format("; "))
    tensors, nulls = takes.unpack(condition), takes.unpack(takes.nulls(x))
    both = (~plain & (strength != 0)).nonzero().squeeze(1)
    last = [torch.where(_over(plain, a), a, null) for a, null in zip(tensors, nulls, strict=True)]
    rows = [torch.cat((a, b[both])) for a, b in zip((x, t, *last), (x, t, *tensors), strict=True)]
    v = velocity(rows[0], rows[1], takes.pack(rows[2:]))
    return combined(v, len(x), (Further(both, strength[both].to(x.dtype)),))


def _over(flags: Tensor, tensor: Tensor) -> Tensor:
    """Reshape flags (rows,) so that they broadcast over a tensor (rows, ...)."""
    return flags.reshape(-1, *([1] * (tensor.ndim - 1)))
