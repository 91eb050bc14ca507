"""The catalogue: solvers by name, the single list from which the API, the docs and the tests are derived."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from solvers.errors import SolverError
from solvers.multistep import STARTERS, STARTS, Exponential, adams_bashforth_weights
from solvers.tableaus import TABLEAUS, Tableau
from solvers.tuned import TUNED


@dataclass(frozen=True)
class Solver:
    """One entry: a Runge-Kutta, Adams-Bashforth or stochastic method, or DPM-Solver++ or UniPC.

    Attributes:
        name: the name in requests.
        tableau: the tableau of the Runge-Kutta method; for Adams-Bashforth, that of its `rk` start.
        multistep_order: the order of a multistep method, 0 for a Runge-Kutta method.
        reference: publication of the method.
        exponential: the method, if it is DPM-Solver++ or UniPC.
        stochastic: whether its paths have noise of their own; without it they are those of the tableau.
    """

    name: str
    tableau: Tableau
    multistep_order: int = 0
    reference: str = ""
    exponential: Exponential | None = None
    stochastic: bool = False

    @property
    def order(self) -> int:
        """The order of the solution; of a stochastic method the weak order, that of expectations."""
        return self.multistep_order or self.tableau.order

    @property
    def adaptive(self) -> bool:
        """Whether there is an error estimate, so that tolerances can be given."""
        return not self.multistep_order and not self.stochastic and self.tableau.adaptive

    @property
    def kind(self) -> str:
        """`adaptive` (with fixed steps too, if steps are given), `fixed`, `multistep` or `stochastic`."""
        if self.stochastic:
            return "stochastic"
        return "multistep" if self.multistep_order else "adaptive" if self.adaptive else "fixed"

    @property
    def slots(self) -> int:
        """Number of velocities that a lane must keep for it."""
        if self.exponential:
            return self.exponential.velocities + self.exponential.steps
        if self.multistep_order:
            return self.multistep_order + self.tableau.used_stages - 1
        return max(self.tableau.stages, 2)  # the automatic first step takes two

    @property
    def starts(self) -> tuple[str, ...]:
        """Possible starts, the default first; empty if there is no choice."""
        return STARTS if self.multistep_order and not self.exponential and not self.learned else ()

    @property
    def learned(self) -> bool:
        """Whether this is `tuned`, the name for the learned plans of a checkpoint; see `solvers.tuned`."""
        return self.name == TUNED

    @property
    def cost(self) -> str:
        """The NFE of N steps or of A attempts, as a formula."""
        if self.exponential:
            return "N"
        if self.multistep_order:
            extra = (self.multistep_order - 1) * (self.tableau.used_stages - 1)
            return f"N (start: ramp), N + {extra} (start: rk)"
        stages = self.tableau.used_stages
        fixed = f"{stages} N" if stages > 1 else "N"
        if not self.adaptive:
            return fixed
        attempts = f"{self.tableau.stages - 1} A" + ("" if self.tableau.fsal else " + accepted steps - 1")
        return f"2 + {attempts} (first_step given: 1 + {attempts}), fixed: {fixed}"

    @cached_property
    def stability_limit(self) -> float | None:
        """The largest z with |R(-x)| <= 1 for all x in [0, z]: y' = -y is stable for h up to z.

        None for DPM-Solver++, UniPC and stochastic methods: their weights depend on t, not on h alone.

        Found from the stability polynomial (Hairer & Wanner II, IV.2) or, for multistep methods, from the roots of
        the characteristic polynomial (Hairer I, III.9 and Hairer & Wanner II, V.1).
        """
        if self.exponential or self.stochastic:
            return None
        order, s = self.multistep_order, self.tableau.used_stages
        a, b = self.tableau.matrix[:s, :s], np.array(self.tableau.b[:s])
        # R(z) = 1 + sum_k z^k b A^(k-1) 1, lowest power first.
        polynomial = np.array([1.0, *(b @ np.linalg.matrix_power(a, k) @ np.ones(s) for k in range(s))])

        def grows(x: float) -> bool:
            if not order:
                return abs(float(np.polynomial.polynomial.polyval(-x, polynomial))) > 1 + 1e-13
            [weights] = adams_bashforth_weights(np.arange(order + 1.0), order)
            roots = np.roots(np.concatenate([[1.0, -1.0 + x * weights[0]], x * weights[1:]]))
            return float(np.abs(roots).max()) > 1 + 1e-12

        high = next(x for x in (np.arange(1, 400) / 50).tolist() if grows(x))
        low = high - 0.02
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if grows(middle) else (middle, high)
        return low

    def describe(self) -> dict[str, object]:
        """The entry as JSON-ready data, as returned by `GET /v1/solvers`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "order": self.order,
            "embedded_order": self.tableau.embedded_order if self.adaptive else None,
            "stages": 1 if self.multistep_order else self.tableau.stages,
            "fsal": not self.multistep_order and self.tableau.fsal,
            "cost": self.cost,
            "stability_limit": None if self.stability_limit is None else round(self.stability_limit, 6),
            "reference": self.reference or self.tableau.reference,
        }


_SOLVERS: dict[str, Solver] = {}
_ALIASES = {"rk45": "dopri5", "heun": "heun2"}
"""Names of other libraries."""


def register(tableau: Tableau) -> Solver:
    """Add a Runge-Kutta method to the catalogue; everything else follows from its tableau.

    Raises:
        ValueError: for a name that is taken, or is not made of lower-case letters, digits and underscores.
    """
    if not re.fullmatch("[a-z_][a-z0-9_]*", tableau.name):
        raise ValueError(f"solver {tableau.name!r}: use only lower-case letters, digits and underscores in the name")
    if has(tableau.name):
        raise ValueError(f"solver {tableau.name!r} is already registered; choose another name")
    _SOLVERS[tableau.name] = Solver(tableau.name, tableau)
    return _SOLVERS[tableau.name]


def solvers() -> dict[str, Solver]:
    """All solvers by name, in the order of registration."""
    return dict(_SOLVERS)


def has(name: str) -> bool:
    """Whether `find` knows a name."""
    return name in (*_SOLVERS, *_ALIASES, TUNED)


def slots() -> int:
    """Number of velocities that a lane must keep for any solver."""
    return max(solver.slots for solver in _SOLVERS.values())


def find(name: str, ending: str = "") -> Solver:
    """Return a solver by name; also `tuned`, which `solvers` does not list, for the learned plans of a checkpoint.

    Args:
        name: name of the solver.
        ending: the rest of its text, such as `-20`; an error appends it to the suggested name.

    Raises:
        SolverError: there is no such solver; the message lists the known ones and suggests the one probably meant.
    """
    if name == TUNED:
        return _LEARNED
    name = _ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in _SOLVERS:
        near = get_close_matches(str(name), _SOLVERS, n=1, cutoff=0.7)
        meant = f"; did you mean {near[0] + ending!r}?" if near else ""
        raise SolverError("solver", f"unknown solver {name!r}; use one of {', '.join(_SOLVERS)}{meant}")
    return _SOLVERS[name]


for _tableau in TABLEAUS:
    register(_tableau)
_EULER, _HEUN = _SOLVERS["euler"].tableau, _SOLVERS["heun2"].tableau
_LEARNED = Solver(TUNED, _EULER, 1, "Shaul et al. 2024, arXiv:2403.01329")
_BASHFORTH = "Bashforth & Adams 1883; Hairer I, III.1 and III.5 for any grid"
_DPMPP = "Lu et al. 2022, DPM-Solver++(2M), arXiv:2211.01095, algorithm 2; in flow form"
_UNIPC = "Zhao et al. 2023, UniPC of order {}, arXiv:2302.04867; in flow form"
_MARUYAMA = "Maruyama 1955; Ma et al. 2024, SiT, arXiv:2401.08740"
for _solver in (
    *(Solver(f"ab{order}", _SOLVERS[starter].tableau, order, _BASHFORTH) for order, starter in STARTERS.items()),
    Solver("dpmpp_2m", _EULER, 2, _DPMPP, Exponential(2, corrects=False)),
    Solver("unipc2", _EULER, 2, _UNIPC.format(2), Exponential(2, corrects=True)),
    Solver("unipc3", _EULER, 2, _UNIPC.format(3), Exponential(3, corrects=True)),
    Solver("sde", _EULER, reference=_MARUYAMA, stochastic=True),
    Solver("sde_heun", _HEUN, reference="Kloeden & Platen 1992, section 15.1", stochastic=True),
):
    _SOLVERS[_solver.name] = _solver
