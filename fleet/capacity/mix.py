"""Request mixes: kinds of requests and their shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from engine.job import Priority
from fleet.errors import UsageError
from models.guidance import network_rows
from solvers import SolverError, SolverSpec
from solvers.plan import Plan
from solvers.plan import compile as compiled


@dataclass(frozen=True)
class Kind:
    """Requests of one kind.

    Attributes:
        share: share of all requests.
        samples: number of samples per request.
        solver: the solver as text.
        plan: the compiled solver.
        guided: whether a call takes two rows per sample.
        priority: priority of a request.
    """

    share: float
    samples: int
    solver: str
    plan: Plan
    guided: bool = False
    priority: Priority = Priority.INTERACTIVE

    @property
    def rows(self) -> int:
        """Network rows per call."""
        return self.samples * network_rows(2.0 if self.guided else None)


def read_mix(path: Path) -> list[Kind]:
    """Read a mix: a JSON list of objects with `share`, `num_samples`, `solver`, and optionally `guided` and `priority`.

    Raises:
        UsageError: for the first fault; the message says where it is.
    """
    try:
        listed = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{path}: must be a list of kinds of requests, at least one")
    return [_kind(f"{path}: entry {place} (counted from 0)", entry) for place, entry in enumerate(listed)]


def arrivals(kinds: Sequence[Kind], rate: float, requests: int, seed: int) -> list[tuple[float, Kind]]:
    """Draw arrival times, in seconds from the start, and kinds of requests: a Poisson process.

    Args:
        kinds: the kinds of requests.
        rate: requests per second.
        requests: number of requests.
        seed: fixes the times and kinds.
    """
    chance, when = Random(seed), 0.0  # noqa: S311  (arrivals are no secret)
    found = []
    for kind in chance.choices(kinds, [kind.share for kind in kinds], k=requests):
        when += chance.expovariate(rate)
        found.append((when, kind))
    return found


def _kind(where: str, entry: Any) -> Kind:
    known = {"share", "num_samples", "solver", "guided", "priority"}
    if not isinstance(entry, dict) or not {"share", "num_samples", "solver"} <= set(entry) <= known:
        raise UsageError(f"{where}: needs share, num_samples and solver, and may have guided and priority")
    try:
        plan = compiled(SolverSpec.parse(entry["solver"]), torch.float32)
        share, samples = float(entry["share"]), int(entry["num_samples"])
        priority = Priority(entry.get("priority", "interactive"))
    except (SolverError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{where}: {error}") from None
    if plan.nfe is None:
        raise UsageError(
            f"{where}: solver {entry['solver']!r} has no fixed cost; use fixed steps of similar cost, as in rk4-20"
        )
    if not 0 < share < float("inf") or samples < 1:
        raise UsageError(f"{where}: share must be above 0 and num_samples at least 1")
    return Kind(share, samples, entry["solver"], plan, bool(entry.get("guided", False)), priority)
