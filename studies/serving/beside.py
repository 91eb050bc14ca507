"""Overhead of the service on one solve: a request over HTTP and the same solve in this process, in turn."""

from __future__ import annotations

import http.client
import json
import os
import time
from urllib.parse import urlsplit

from models.checkpoint.loading import Checkpoint
from studies.serving.inside import one_solve

REQUEST = {"model": "moons", "solver": "rk4", "steps": 20, "num_samples": 16}


def in_turn(
    url: str, checkpoint: Checkpoint, cores: tuple[int, int], repetitions: int = 100
) -> list[tuple[float, float]]:
    """Return the seconds of workload c's request, and of its solve on the service's core, for each repetition.

    On a shared machine both change by tens of percent from one second to the next, so they are measured in turn.

    Args:
        url: address of the service.
        checkpoint: the model that it serves.
        cores: the core of the service and that of this process.
        repetitions: number of requests and of solves.
    """
    connection, found = http.client.HTTPConnection(urlsplit(url).netloc), []
    for seed in range(repetitions):
        begin = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/sample", json.dumps(REQUEST | {"seed": seed}), headers)
        answer = connection.getresponse()
        content = answer.read()
        through = time.perf_counter() - begin
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {content[:300]!r}")
        os.sched_setaffinity(0, {cores[0]})
        alone = one_solve(checkpoint, 1)
        os.sched_setaffinity(0, {cores[1]})
        if seed >= repetitions // 10:  # the first ones warm up
            found.append((through, alone))
    connection.close()
    return found
