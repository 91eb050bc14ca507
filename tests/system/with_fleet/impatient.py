"""The application of `fleet.ray_serve` that adds a replica after a second of too much work, where Ray waits for 30."""

from typing import Any

from fleet import ray_serve


def app(arguments: dict[str, Any]) -> Any:
    application = ray_serve.app(arguments)
    application._bound_deployment._deployment_config.autoscaling_config.upscale_delay_s = 1
    return application
