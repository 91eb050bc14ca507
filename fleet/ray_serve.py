"""Replicas on Ray Serve: ``serve run fleet.ray_serve:app``, or ``python -m fleet serve``.

proxy (Ray's) -> Front (stateless, estimates work) -> LeastWork (chooses a replica) -> Replica (the service on a device)

With ``route_by=requests``, the proxy chooses the replica, by the number of its requests: proxy -> Reachable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fleet.errors import UsageError, missing
from fleet.scaling import METRIC
from fleet.tunnel import Answer, Call, Front, Local, answered
from fleet.work import ROUTE_BY, Dispatched
from service.settings import Settings, load_settings

try:
    from ray import serve  # pyright: ignore[reportMissingImports]  (an extra)
    from ray.serve.config import AutoscalingPolicy, RequestRouterConfig  # pyright: ignore[reportMissingImports]
    from ray.serve.request_router import RequestRouter  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(str(missing("ray", error))) from None

_UNBOUNDED = 100_000  # no limit: a replica's own admission refuses, with an accurate Retry-After
_METRICS_PORT = "FLEET_METRICS_PORT"


class LeastWork(RequestRouter):
    """Routes each call to the replica with the least dispatched work, as counted by this router."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Start with no dispatched work."""
        self._dispatched = Dispatched()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return all replicas, the least loaded first, one per rank."""
        named = {replica.replica_id: replica for replica in candidate_replicas}
        order = self._dispatched.order(named)
        if pending_request is not None and order:
            self._dispatched.reserve(_key(pending_request), order[0], _work(pending_request))
        return [[named[place]] for place in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Count a request as sent."""
        self._dispatched.send(_key(pending_request), replica_id, _work(pending_request))

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Stop counting a request."""
        self._dispatched.done(internal_request_id)


def _key(pending: Any) -> str:
    return pending.metadata.internal_request_id


def _work(pending: Any) -> float:
    call = pending.args[0] if pending.args else None
    return call.work if isinstance(call, Call) else 1.0


class Replica:
    """The whole service in a Ray process, on the device that Ray assigns."""

    def __init__(self, overrides: dict[str, Any]) -> None:
        from service.app import create_app  # imports torch, which the ingress does not need

        self._settings = load_settings(**overrides)
        self._app = create_app(self._settings)
        self._running, self._starting = AsyncExitStack(), asyncio.Lock()
        self._started = False
        _expose_metrics(self._app.state.service.metrics)

    async def check_health(self) -> None:
        """Raise an error if Ray must replace this process; the first call waits until the models are loaded."""
        await self._start()
        fatal_fault = self._app.state.service.fatal_fault()
        if fatal_fault is not None:
            raise RuntimeError(fatal_fault)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the seconds of work left to Ray's autoscaler."""
        return {METRIC: self._app.state.service.engine.workload().seconds if self._started else 0.0}

    async def _start(self) -> None:
        async with self._starting:
            if not self._started:
                from service.server import freeze

                await self._running.enter_async_context(self._app.router.lifespan_context(self._app))
                freeze()
                self._started = True

    async def handle(self, call: Call) -> AsyncIterator[Any]:
        """Answer a request, yielding ASGI messages in batches."""
        if not self._started:
            await self._start()
        messages = answered(self._app, call)
        try:
            async for some in messages:
                yield some
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  (it is a generator)

    def __del__(self) -> None:
        if getattr(self, "_started", False):
            self._app.state.service.stop()


class Reachable(Replica):
    """A replica that the proxy reaches itself, without an ingress in between."""

    def __serve_build_asgi_app__(self) -> Front:
        """Build the application that Ray serves, in this process."""
        return Front(lambda call: Local(self.handle(call)), self._settings)


def _expose_metrics(metrics: Any) -> None:
    """Serve this replica's Prometheus metrics on the first free port from FLEET_METRICS_PORT (9600 by default)."""
    from prometheus_client import start_http_server

    first = int(os.environ.get(_METRICS_PORT, "9600"))
    for port in range(first, first + 100):
        try:
            start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
            return
        except OSError:
            continue


def _front() -> Front:
    """Build the ingress in its own process."""
    handle = serve.get_deployment_handle("Replica", app_name=serve.get_replica_context().app_name)
    # Both sides run the same code, so plain pickle does; Ray's default, cloudpickle, takes several times as long.
    serialization = {"request_serialization": "pickle", "response_serialization": "pickle"}
    answering = handle.options(method_name="handle", stream=True, **serialization)

    def dispatch(call: Call) -> Answer:
        return answering.remote(call)

    return Front(dispatch, load_settings())


def replica_deployment(arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the deployment of the replicas, and its own arguments: service settings.

    Raises:
        UsageError: `route_by` is unknown.
    """
    given = dict(arguments)
    replicas, gpus = int(given.pop("replicas", 1)), float(given.pop("gpus", 0))
    bounds = {name: int(given.pop(name)) for name in ("min_replicas", "max_replicas") if name in given}
    target = float(given.pop("target_s", 2))
    delays = {name: float(given.pop(name)) for name in ("upscale_delay_s", "downscale_delay_s") if name in given}
    route_by = str(given.pop("route_by", ROUTE_BY[0]))
    if route_by not in ROUTE_BY:
        raise UsageError(f"route_by is {route_by!r}; choose from {', '.join(ROUTE_BY)}")
    settings = load_settings(**given)
    more: dict[str, Any] = {"num_replicas": replicas}
    if bounds:
        policy = AutoscalingPolicy(policy_function="fleet.scaling:ByWork", policy_kwargs={"target_s": target})
        more = {"autoscaling_config": {**bounds, **delays, "policy": policy}}
    if route_by == "work":  # (where HAProxy balances, Ray refuses a router)
        more["request_router_config"] = RequestRouterConfig(request_router_class="fleet.ray_serve:LeastWork")
    made = serve.deployment(
        Replica if route_by == "work" else serve.ingress()(Reachable),
        name="Replica",
        max_ongoing_requests=_UNBOUNDED,
        ray_actor_options={"num_cpus": settings.threads or 1, "num_gpus": gpus},
        health_check_period_s=5,
        **_running(settings),
        **more,
    )
    return made, {**given, "models_dir": str(settings.models_dir.resolve())}


def _running(settings: Settings) -> dict[str, Any]:
    """Return the options of both deployments: stop as soon as it is idle, and log requests only if that is set."""
    return {
        "graceful_shutdown_wait_loop_s": 0.2,
        "graceful_shutdown_timeout_s": settings.drain_s,
        "logging_config": {"enable_access_log": settings.access_log},
    }


def build(arguments: dict[str, Any]) -> Any:
    """Build the Ray Serve application.

    Args:
        arguments: `replicas` (1), or `min_replicas` and `max_replicas` for autoscaling to `target_s` seconds of work
            per replica (2), with `upscale_delay_s` (30) and `downscale_delay_s` (600); `gpus` per replica (0);
            `route_by`, `work` (the default) or `requests`; service settings by name.

    Raises:
        UsageError: `route_by` is unknown.
    """
    replicas, given = replica_deployment(arguments)
    if arguments.get("route_by") == "requests":
        return replicas.bind(given)
    front = serve.deployment(
        serve.ingress(_front)(),
        name="Front",
        max_ongoing_requests=_UNBOUNDED,
        ray_actor_options={"num_cpus": 0},
        **_running(load_settings(**given)),
    )
    return front.bind(replicas.bind(given))


app = build
"""Target of `serve run fleet.ray_serve:app replicas=2`."""
