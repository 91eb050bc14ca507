"""Cost of the same work without HTTP: the upper bound, the engine alone, and one solve in the process."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from random import Random
from statistics import median
from typing import Any

import torch

from benchmarks.serving.workloads import WORKLOADS
from models.checkpoint.loading import Checkpoint, load
from models.fused import prepare
from models.noise import noise
from models.row_padding import RowStable
from service.engine.engine import Engine
from service.engine.job import Job, JobResult
from service.settings import Settings
from solvers import integrate, resolve


def seconds_a_row(checkpoint: Checkpoint) -> tuple[float, int]:
    """The cheapest network row over batches of many sizes, and the rows of that batch."""
    shape, best = checkpoint.card.event_of(), (float("inf"), 0)
    velocity = prepare(checkpoint.velocity, checkpoint.card.condition).velocity
    with torch.inference_mode():
        for rows in (32, 64, 128, 256, 512, 1024, 2048):
            x, t = noise(0, 0, rows, shape, checkpoint.dtype), torch.full((rows,), 0.5, dtype=checkpoint.dtype)
            times = []
            for _ in range(20):
                begin = time.perf_counter()
                velocity(x, t)
                times.append(time.perf_counter() - begin)
            best = min(best, (median(times) / rows, rows))
    return best


def one_solve(checkpoint: Checkpoint, repetitions: int = 40) -> float:
    """Median seconds of RK4-20 for 16 samples in this process: noise, solve and decoding."""
    shape, times = checkpoint.card.event_of(), []
    made = prepare(checkpoint.velocity, checkpoint.card.condition)
    velocity = RowStable(made.velocity, shape, checkpoint.dtype, unpadded=made.fused)
    with torch.inference_mode():
        for seed in range(repetitions):
            begin = time.perf_counter()
            x0 = noise(seed, 0, 16, shape, checkpoint.dtype)
            checkpoint.decoder.decode(integrate(velocity, x0, solver="rk4", steps=20).x)
            times.append(time.perf_counter() - begin)
    return median(times)


def _job(draw: Random) -> Job:
    request: dict[str, Any] = WORKLOADS["e"].draw(draw)
    count = request.pop("num_samples")
    return Job("moons", 1, resolve(**request), count, seed=draw.randrange(2**31), trace="summary")


def engine_overhead(path: Path, concurrent: int = 256, requests: int = 3000) -> tuple[float, float, float]:
    """Microseconds that the engine takes for a request outside the network, with this number of requests at once.

    The mix is that of workload e. Everything runs on one core, so the time includes whoever submits and collects.

    Returns:
        (microseconds a request, requests a second, share of the time inside the network).
    """
    engine = Engine(Settings(models_dir=path.parents[1], threads=1, max_queue=2 * concurrent))
    engine.start()
    arena = engine.load("moons", 1, load(path))
    draw = Random(0)  # noqa: S311  (load, not secrets)
    jobs = [_job(draw) for _ in range(requests)]
    ended: SimpleQueue[Future[JobResult]] = (
        SimpleQueue()
    )  # waiting for all futures at once would cost more than a solve
    begin, inside = time.perf_counter(), arena.network.seconds
    for done in range(-concurrent, requests):
        if done >= 0:
            ended.get().result()
        if done + concurrent < requests:
            engine.submit(jobs[done + concurrent]).add_done_callback(ended.put)
    seconds, network = time.perf_counter() - begin, arena.network.seconds - inside
    engine.stop()
    return 1e6 * (seconds - network) / requests, requests / seconds, network / seconds
