"""Autoscaling on Ray Serve by work: the seconds of unfinished work that replicas report, as in `/v1/load`."""

from __future__ import annotations

from typing import Any

METRIC = "work_s"
"""Name of the metric that each replica reports to Ray."""


class ByWork:
    """Ray Serve autoscaling policy: enough replicas to leave each a given number of seconds of work.

    Ray calls it with an `AutoscalingContext`, clamps the result to its bounds, and applies its delays.

    Args:
        target_s: seconds of work per replica.
    """

    def __init__(self, target_s: float) -> None:
        if not target_s > 0:
            raise ValueError(f"target_s is {target_s}; it must be above 0")
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the desired number of replicas, and the state that Ray keeps for its delays."""
        reported = (context.aggregated_metrics or {}).get(METRIC, {})
        if not reported:  # no reports yet
            return context.target_num_replicas, {}
        return sum(reported.values()) / self._target_s, {}
