"""Replicas on a Ray Serve cluster: ``serve run fleet.ray_serve:app models_dir=/models max_replicas=8 gpus=1``.

Each replica is the whole service, with one device. Ray's own router chooses the replica for a request, and Ray adds
replicas by the seconds of work that wait (`fleet.scaling`).
"""

from __future__ import annotations

from typing import Any

from fleet.errors import missing
from fleet.scaling import METRIC
from service.settings import load_settings

try:
    from ray import serve  # pyright: ignore[reportMissingImports]  (an extra)
    from ray.serve.config import AutoscalingPolicy  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(str(missing("ray", error))) from None

_UNBOUNDED = 100_000  # no limit: a replica's own admission refuses, with an accurate Retry-After


@serve.ingress()
class Replica:
    """The service in a Ray process.

    Args:
        overrides: settings by name; others come from the environment.
    """

    def __init__(self, overrides: dict[str, Any]) -> None:
        from service.app import create_app  # imports torch, which the process that deploys does not need

        self._app = create_app(load_settings(**overrides))

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application; Ray runs its lifespan, which loads the models."""
        return self._app

    async def check_health(self) -> None:
        """Raise an error if Ray must replace this process."""
        if fault := self._app.state.service.fatal_fault():
            raise RuntimeError(fault)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the seconds of work left to Ray's autoscaler."""
        return {METRIC: self._app.state.service.engine.workload().seconds}


def app(arguments: dict[str, Any]) -> Any:
    """Build the Ray Serve application.

    Args:
        arguments: `min_replicas` (1) and `max_replicas` (1), between which Ray keeps each replica at `target_s` seconds
            of work (2); `gpus` for each (0); and settings of the service by name.
    """
    settings = dict(arguments)
    least = int(settings.pop("min_replicas", 1))
    most, gpus = int(settings.pop("max_replicas", least)), float(settings.pop("gpus", 0))
    target_s = float(settings.pop("target_s", 2))
    service = load_settings(**settings)
    policy = AutoscalingPolicy(policy_function="fleet.scaling:ByWork", policy_kwargs={"target_s": target_s})
    deployment = serve.deployment(
        Replica,
        max_ongoing_requests=_UNBOUNDED,
        autoscaling_config={"min_replicas": least, "max_replicas": most, "policy": policy},
        ray_actor_options={"num_cpus": service.threads or 1, "num_gpus": gpus},
        graceful_shutdown_timeout_s=service.drain_s,
        health_check_period_s=5,
    )
    return deployment.bind({**settings, "models_dir": str(service.models_dir.resolve())})
