"""Routers compared: latencies of simulated replicas, each running the service's own scheduler, behind each router.

The clock is simulated, so a busy machine changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from fleet.capacity.measure import Speed
from fleet.capacity.mix import arrivals
from fleet.capacity.simulation import Replica
from fleet.work import Dispatched
from studies.fleet.plans import MIXES, kinds_of, rate_of

REPLICAS, LOAD, REQUESTS, MIX = 8, 0.8, 3000, "a tenth large"
SPEED = Speed(0.75e-3, 26.4e-6)
_OLD_S, _TIMEOUT_S = 0.5, 600.0


class Seen:
    """The knowledge that a router may use for its choice.

    Attributes:
        now: the time.
        count: number of requests so far.
        work: unfinished work of each replica, as dispatched.
        requests: unfinished requests of each replica.
        old: the unfinished work at the last report; replicas report every half second.
        chance: source of random choices.
    """

    def __init__(self) -> None:
        self.now, self.count, self.chance = 0.0, 0, Random(0)  # noqa: S311  (no secret)
        self.work = Dispatched(lambda: self.now)
        self.requests = [0] * REPLICAS
        self.old, self._reported = [0.0] * REPLICAS, 0.0

    def least(self, load: Callable[[int], float], among: range | list[int] = range(REPLICAS)) -> int:
        """Return the replica with the least load; ties are decided at random."""
        return min(among, key=lambda each: (load(each), self.chance.random()))

    def report(self) -> None:
        """Take a report if one is due."""
        if self.now >= self._reported + _OLD_S:
            self.old, self._reported = [self.work.work(each) for each in range(REPLICAS)], self.now


ROUTERS: dict[str, Callable[[Seen], int]] = {
    "random": lambda seen: seen.chance.randrange(REPLICAS),
    "round robin": lambda seen: seen.count % REPLICAS,
    "two choices": lambda seen: seen.least(seen.requests.__getitem__, seen.chance.sample(range(REPLICAS), 2)),
    "least requests": lambda seen: seen.least(seen.requests.__getitem__),
    "least work": lambda seen: seen.work.order(range(REPLICAS))[0],
    "reported work": lambda seen: seen.least(seen.old.__getitem__),
}
"""Routers; "least work" is the code of `fleet.ray_serve.LeastWork`, "reported work" uses reports up to 0.5 s old."""


def latencies(router: Callable[[Seen], int], requests: int = REQUESTS) -> list[float]:
    """Return the latencies of all requests, ascending."""
    kinds, seen, found = kinds_of(MIXES[MIX]), Seen(), list[float]()
    replicas = [Replica(SPEED, _TIMEOUT_S) for _ in range(REPLICAS)]
    ends: list[tuple[float, int, int]] = []  # kept until their time, as a call may end after the next arrival

    def ended(end: float | None, place: int, number: int, when: float) -> None:
        if end is None:
            raise AssertionError("a request was refused")
        found.append(end - when)
        heapq.heappush(ends, (end, place, number))

    for number, (when, kind) in enumerate(arrivals(kinds, REPLICAS * rate_of(kinds, SPEED, LOAD), requests, 0)):
        for replica in replicas:
            replica.advance(when)
        while ends and ends[0][0] <= when:
            _, place, before = heapq.heappop(ends)
            seen.requests[place] -= 1
            seen.work.done(str(before))
        seen.now, seen.count = when, number
        seen.report()
        place = router(seen)
        seen.requests[place] += 1
        seen.work.send(str(number), place, kind.rows * float(kind.plan.nfe or 0))
        replicas[place].send(kind, when, lambda end, at=(place, number, when): ended(end, *at))
    for replica in replicas:
        replica.advance()
        replica.stop()
    return sorted(found)


def table() -> bool:
    """Print the latencies behind each router; return whether least work has the lowest p99."""
    print(f"\n{REPLICAS} simulated replicas, load {LOAD:g}, {REQUESTS:,} requests of the mix '{MIX}',")
    print(f"t(n) = {1e3 * SPEED.call_s:g} ms + {1e6 * SPEED.row_s:g} us n for a call of n rows")
    print(f"{'router':16} {'p50':>8} {'p99':>8}")
    p99 = dict[str, float]()
    for name, router in ROUTERS.items():
        found = latencies(router)
        p50, p99[name] = (found[int(share * len(found))] for share in (0.5, 0.99))
        print(f"{name:16} {p50:6.2f} s {p99[name]:6.2f} s", flush=True)
    met = min(p99, key=p99.__getitem__) == "least work"
    print(f"least work has the lowest p99: {'yes' if met else 'NO'}")
    return met
