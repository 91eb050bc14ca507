"""A local Ray cluster on the loopback interface, without usage reports."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from fleet.errors import FleetError, missing

_REACH_S = 10.0


def join(cores: int | None = None) -> Any:
    """Return the `ray` module, connected to the cluster at RAY_ADDRESS or to a new local one.

    A new cluster binds to 127.0.0.1 only, has no dashboard and sends no usage reports. Start a cluster of several
    machines with `ray start`; see docs/scale.md.

    Args:
        cores: number of cores for a new cluster; all by default.

    Raises:
        FleetError: Ray is not installed, the cluster at RAY_ADDRESS cannot be joined, or a new one did not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError as error:
        raise missing("ray", error) from None
    if address := os.environ.get("RAY_ADDRESS"):
        _reach(address)
    try:
        if address:
            ray.init(log_to_driver=False)
        else:
            ray.init(
                num_cpus=cores,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                configure_logging=False,
            )
    except Exception as error:  # Ray also raises a plain Exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if address:
            raise FleetError(f"cannot join the Ray cluster at RAY_ADDRESS={address}: {reason}") from error
        raise FleetError(f"Ray did not start on this machine: {reason} Run this again.") from error
    return ray


def _reach(address: str) -> None:
    """Raise a FleetError if nothing listens at HOST:PORT; Ray would try for ten minutes."""
    if not (parts := re.fullmatch(r"([^:/]+):(\d+)", address)):
        return  # such as "auto"
    try:
        socket.create_connection((parts[1], int(parts[2])), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise FleetError(f"cannot reach the Ray cluster at RAY_ADDRESS={address}: {error}") from None
