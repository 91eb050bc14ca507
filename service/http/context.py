"""What is known about one HTTP request while it is answered."""

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from service.ledger import Hold

_KEY = "pathline"


@dataclass
class Context:
    """One request: its id, when it came (`time.perf_counter`), and what the route found out for metrics and headers.

    `timings` are seconds by name, shown in ``Server-Timing``. `model` and `solver` stay empty until they are known
    to exist, so that they can be metric labels. `outcome` is set where the status code does not tell how it ended.
    `fallback_from` is the version that should have answered where it cannot be loaded and an older one does.
    `hold` is the memory that was set aside for it, until it is over; `body` that of its body, until it is understood.
    """

    request_id: str = field(default_factory=lambda: uuid4().hex)
    started: float = field(default_factory=time.perf_counter)
    model: str = ""
    solver: str = ""
    outcome: str = ""
    fallback_from: int | None = None
    timings: dict[str, float] = field(default_factory=dict)
    hold: "Hold | None" = None
    body: "Hold | None" = None
    _over: bool = False

    def keep(self, hold: "Hold") -> None:
        """Keep memory that was set aside; from any thread, also one that comes too late."""
        self.hold = hold
        if self._over:
            hold.over()

    def understood(self) -> None:
        """Nothing of the body is needed any more."""
        if self.body is not None:
            self.body.over()

    def end(self) -> None:
        """The request is over: its answer is out, or nobody waits for it."""
        self._over = True
        self.understood()
        if self.hold is not None:
            self.hold.over()

    def fallback(self) -> dict[str, int]:
        """Return the member of an answer that says of a fallback; there is none as a rule."""
        return {} if self.fallback_from is None else {"fallback_from": self.fallback_from}

    def elapsed(self) -> float:
        """Return the seconds since the request came."""
        return time.perf_counter() - self.started


def context_of(scope: MutableMapping[str, Any]) -> Context:
    """Return the context of an ASGI scope, made on first use."""
    context = scope.get(_KEY)
    if context is None:
        context = scope[_KEY] = Context()
    return context
