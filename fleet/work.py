"""Estimated work of requests, in network rows over all calls, and the choice of the least loaded replica."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from models.guidance import network_rows
from service.errors import ProblemError
from service.requests.npz_body import is_npz, read_members
from service.requests.schemas import DEFAULT_NUM_SAMPLES
from solvers import SolverError, SolverSpec, plan
from solvers.spec import DEFAULTS

_ADAPTIVE_NFE = 60.0
"""Approximate NFE of a sample under error control: that of dopri5 at 1e-5. The replica itself knows better."""

_LARGEST_BODY = 1 << 20
_LONGEST_KEY = 1000  # characters; longer settings, such as grids, are not remembered
_RESERVED_S = 1.0

ROUTE_BY = ("work", "requests")
"""What the load of a replica is measured by, the default first."""

Place = TypeVar("Place", bound=Hashable)


def work_of(path: str, body: bytes) -> float:
    """Return the network rows of a request over all calls, rows x NFE; 1 for a faulty request or another route.

    Large JSON is not read; its size stands for its rows. Of an npz body only the members are read, not the arrays.
    """
    arrays = is_npz(body)
    large = len(body) > _LARGEST_BODY and not arrays
    if large or not path.endswith(("/sample", "/sample/stream")):
        return len(body) / 16 if large else 1.0
    try:
        members: dict[str, Any] = json.loads(read_members(body) if arrays else body)
        given = {name: members[name] for name in DEFAULTS if name != "t_span" and name in members}
        rows = int(members.get("num_samples", DEFAULT_NUM_SAMPLES))
        return max(1.0, rows * _width(members.get("guidance")) * _nfe(given))
    except (ValueError, TypeError, AttributeError, KeyError, SolverError, ProblemError):
        return 1.0


def _nfe(given: dict[str, Any]) -> float:
    """Return the NFE of a sample, given solver settings as JSON values."""
    text = json.dumps(given)
    return _known_nfe(text) if len(text) <= _LONGEST_KEY else _compiled_nfe(given)


@lru_cache(maxsize=256)
def _known_nfe(text: str) -> float:
    """Remember the NFE of settings, because clients repeat them; an error is raised each time."""
    return _compiled_nfe(json.loads(text))


def _compiled_nfe(given: dict[str, Any]) -> float:
    solve = plan.compile(SolverSpec.of(**given))
    return _ADAPTIVE_NFE if solve.nfe is None else float(solve.nfe)


def _width(guidance: Any) -> int:
    """Return the network rows of one evaluation: one for each term of the guidance."""
    if isinstance(guidance, dict) and guidance.get("terms"):
        return len(guidance["terms"])
    return network_rows(guidance.get("strength") if isinstance(guidance, dict) else guidance)


class Dispatched:
    """Unfinished work dispatched to each of several places, for a router to choose by.

    Work counts from the moment of dispatch. Reports from replicas are half a second old, so a router that relied on
    them would send all requests to the same place.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[str, tuple[Hashable, float, float]] = {}  # by request: place, work, expiry time
        self._work: dict[Hashable, float] = {}

    def work(self, place: Hashable) -> float:
        """Return the unfinished work of a place."""
        return self._work.get(place, 0.0)

    def order(self, places: Iterable[Place]) -> list[Place]:
        """Return places by work, the least first; ties keep their order."""
        self._expire()
        return sorted(places, key=self.work)

    def reserve(self, request: str, place: Hashable, work: float) -> None:
        """Count a request that is about to be sent; it is forgotten after a second unless `send` follows."""
        self._put(request, place, work, self._clock() + _RESERVED_S)

    def send(self, request: str, place: Hashable, work: float) -> None:
        """Count a request that was sent."""
        self._put(request, place, work, float("inf"))

    def done(self, request: str) -> None:
        """Stop counting a request, however it ended; a second call does nothing."""
        if (sent := self._sent.pop(request, None)) is not None:
            place, work, _ = sent
            self._work[place] -= work
            if not any(other == place for other, _, _ in self._sent.values()):
                del self._work[place]  # drops rounding errors and replicas that are gone

    def _put(self, request: str, place: Hashable, work: float, until: float) -> None:
        self.done(request)
        self._sent[request] = place, work, until
        self._work[place] = self._work.get(place, 0.0) + work

    def _expire(self) -> None:
        now = self._clock()
        for request in [request for request, (_, _, until) in self._sent.items() if until < now]:
            self.done(request)
