"""Cost of the same work without HTTP: the upper bound, the engine alone, and one solve in the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from statistics import median
from typing import Any

import torch

from engine.arena import Arena
from engine.engine import Engine
from engine.job import Job, JobResult
from models.checkpoint.loading import Checkpoint, load
from models.forms.form import choose
from models.forms.rows import field_rows
from models.noise import noise
from service.settings import Settings
from solvers import integrate, resolve
from studies.serving.workloads import WORKLOADS


def seconds_a_row(checkpoint: Checkpoint) -> tuple[float, int]:
    """Return the seconds of the cheapest network row over batches of many sizes, and the size of that batch."""
    shape, best = checkpoint.card.event_of(), (float("inf"), 0)
    velocity = choose(
        checkpoint.velocity, checkpoint.card.network_conditions, checkpoint.path, checkpoint.digest
    ).velocity
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
    """Return the median seconds of RK4-20 for 16 samples in this process: noise, solve and decoding."""
    shape, times = checkpoint.card.event_of(), []
    form = choose(checkpoint.velocity, checkpoint.card.network_conditions, checkpoint.path, checkpoint.digest)
    velocity = field_rows(form.velocity, shape, checkpoint.dtype, independent=form.independent)
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


@contextmanager
def _running(path: Path, most: int) -> Iterator[tuple[Engine, Arena]]:
    engine = Engine(Settings(models_dir=path.parents[1], threads=1, max_queue=most))
    engine.start()
    try:
        yield engine, engine.load("moons", 1, load(path))
    finally:
        engine.stop()


def _engine_seconds() -> float:
    """Return the seconds of processor time that the engine's thread has used."""
    [number] = [thread.native_id for thread in threading.enumerate() if thread.name == "pathline-engine"]
    return int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) / 1e9


def engine_overhead(path: Path, row_s: float, concurrent: int, requests: int = 2000) -> tuple[float, float]:
    """Return the engine thread's processor time for a request of workload e outside the network, without HTTP.

    Args:
        path: the checkpoint.
        row_s: seconds of a network row.
        concurrent: number of requests at once.
        requests: number of requests in all.

    Returns:
        (microseconds per request, share of the thread's time inside the network).
    """
    draw = Random(0)  # noqa: S311  (load, not secrets)
    jobs = [_job(draw) for _ in range(requests)]
    # Waiting for all futures at once would cost more than a solve.
    ended: SimpleQueue[Future[JobResult]] = SimpleQueue()
    with _running(path, 2 * concurrent) as (engine, arena):
        begin, rows = _engine_seconds(), arena.network.rows
        for done in range(-concurrent, requests):
            if done >= 0:
                ended.get().result()
            if done + concurrent < requests:
                engine.submit(jobs[done + concurrent]).add_done_callback(ended.put)
        seconds, network = _engine_seconds() - begin, row_s * (arena.network.rows - rows)
    return 1e6 * (seconds - network) / requests, network / seconds


LONG: tuple[dict[str, Any], ...] = (
    {"solver": "euler", "steps": 10_000},
    {"solver": "rk4", "steps": 2_500},
    {"solver": "dopri5", "rtol": 1e-5, "max_step": 1e-4, "max_nfe": 100_000},
    {"solver": "tsit5", "rtol": 1e-5, "max_step": 1e-4, "max_nfe": 100_000},
)
"""Solves that outlast the measurement."""


def tick_overhead(path: Path, lanes: int = 64, ticks: int = 2000) -> float:
    """Return the microseconds of processor time of a tick outside the network, while no request begins or ends.

    Each tick follows a network call, which has emptied the caches. Half of the lanes are under error control.
    """
    with _running(path, lanes) as (engine, arena):
        field = arena.network.call
        x, t = noise(0, 0, lanes, arena.event_shape, arena.dtype), torch.full((lanes,), 0.5, dtype=arena.dtype)
        alone, calls = 0.0, 0

        def ask(times: int) -> float:
            begin = time.thread_time()
            with torch.inference_mode():
                for _ in range(times):
                    field(x, t)
            return time.thread_time() - begin

        solves = [resolve(**each) for each in LONG]
        for k in range(lanes):
            engine.submit(Job("moons", 1, solves[k % len(solves)], 1, seed=k))
        while arena.network.rows < 100 * lanes:
            time.sleep(0.01)
        begin, rows = _engine_seconds(), arena.network.rows
        while arena.network.rows < rows + ticks * lanes:
            alone, calls = alone + ask(10), calls + 10  # in turn, because the machine's speed changes
            time.sleep(0.01)
        made = (arena.network.rows - rows) / lanes
        return 1e6 * ((_engine_seconds() - begin) / made - alone / calls)
