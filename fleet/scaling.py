"""Autoscaling on Ray Serve by work: the seconds that replicas need for what they have, as `/v1/load` says it."""

from __future__ import annotations

from typing import Any

METRIC = "work_s"
"""Name of what each replica reports to Ray."""


class ByWork:
    """A policy of Ray Serve: as many replicas as share the work left so that each has a given time to do.

    Ray calls it with an `AutoscalingContext`, keeps the number within its bounds, and waits before it follows.

    Args:
        target_s: seconds of work for each replica.
    """

    def __init__(self, target_s: float) -> None:
        if not target_s > 0:
            raise ValueError(f"target_s is {target_s}; seconds above 0 are needed")
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The number of replicas that are wanted, and the state that Ray keeps for its delays."""
        reported = (context.aggregated_metrics or {}).get(METRIC, {})
        if not reported:  # none has said anything yet
            return context.target_num_replicas, {}
        return sum(reported.values()) / self._target_s, {}
