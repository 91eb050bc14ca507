"""The `serve` command: replicas on a local Ray cluster, or on the one at RAY_ADDRESS."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

from fleet.errors import FleetError, UsageError
from fleet.work import ROUTE_BY
from service.settings import load_settings


def add_serve(commands: Any) -> None:
    """Add the `serve` command."""
    parser: argparse.ArgumentParser = commands.add_parser("serve", help="run replicas behind one address, on Ray Serve")
    parser.add_argument("--replicas", type=int, default=1, help="number of replicas (default: 1)")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per replica (default: 0)")
    parser.add_argument(
        "--route-by",
        choices=ROUTE_BY,
        default=ROUTE_BY[0],
        help="send each request to the replica with the least unfinished work, or with the fewest requests, which "
        "saves a hop (default: work)",
    )
    parser.set_defaults(run=serve)


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C, then finish running requests and stop."""
    if options.replicas < 1:
        raise UsageError(f"--replicas is {options.replicas}; it must be at least 1")
    settings = load_settings()
    from fleet.ray_local import join

    cores = options.replicas * (settings.threads or 1)
    ray = join(cores)
    try:
        from fleet.ray_serve import build
    except ImportError as error:
        raise FleetError(str(error)) from None
    from ray import serve as engine  # pyright: ignore[reportMissingImports]  (an extra)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine.start(http_options={"host": settings.host, "port": settings.port})
    arguments = {"replicas": options.replicas, "gpus": options.gpus, "route_by": options.route_by}
    engine.run(build(arguments), name="pathline", route_prefix="/")
    print(f"{options.replicas} replicas on http://{settings.host}:{settings.port}", flush=True)
    while not stop.wait(1):
        pass
    engine.delete("pathline")  # replicas finish their requests; the proxies stay until then
    engine.shutdown()
    ray.shutdown()
    return 0
