"""Workloads: the requests that the clients send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Request = dict[str, object]

SOLVERS = ("euler", "midpoint", "rk4", "dopri5")

FIVE: tuple[Request, ...] = (
    {"solver": "euler", "steps": 50},
    {"solver": "midpoint", "steps": 40},
    {"solver": "rk4", "steps": 10},
    {"solver": "rk4", "steps": 20},
    {"solver": "dopri5", "rtol": 1e-5, "atol": 1e-5},
)


def label(request: Request) -> str:
    """Return a label such as `rk4-20`, or the solver's name under error control."""
    return f"{request['solver']}-{request['steps']}" if "steps" in request else str(request["solver"])


def _mixed(draw: Random, most: int) -> Request:
    return {**draw.choice(FIVE), "num_samples": draw.randint(1, most)}


def _own(draw: Random) -> Request:
    kind = draw.choice(SOLVERS)
    if kind == "dopri5":
        tolerance = 10 ** draw.uniform(-6, -3)
        return {"solver": kind, "rtol": tolerance, "atol": tolerance, "num_samples": draw.randint(1, 4)}
    least, most = {"euler": (10, 60), "midpoint": (5, 40), "rk4": (5, 25)}[kind]
    return {"solver": kind, "steps": draw.randint(least, most), "num_samples": draw.randint(1, 4)}


@dataclass(frozen=True)
class Workload:
    """A stream of requests.

    Attributes:
        title: description for tables.
        clients: number of clients; each sends its next request when it has its answer.
        draw: returns the next request.
        target: the goal for the rate, as a multiple of the plain service's; None if only latency matters.
    """

    title: str
    clients: int
    draw: Callable[[Random], Request]
    target: float | None


WORKLOADS = {
    "a": Workload(
        "Euler-16, 16 samples, all alike", 32, lambda _: {"solver": "euler", "steps": 16, "num_samples": 16}, 4.0
    ),
    "b": Workload("five solvers, 1 to 64 samples", 32, lambda draw: _mixed(draw, 64), 3.6),
    "c": Workload(
        "one client, RK4-20, 16 samples", 1, lambda _: {"solver": "rk4", "steps": 20, "num_samples": 16}, None
    ),
    "d": Workload("five solvers, 1 to 4 samples", 32, lambda draw: _mixed(draw, 4), 14.0),
    "e": Workload("own steps or tolerance each, 1 to 4 samples", 32, _own, 13.0),
    "f": Workload(
        "one client, one step, one sample", 1, lambda _: {"solver": "euler", "steps": 1, "num_samples": 1}, None
    ),
}
