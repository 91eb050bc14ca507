"""Models are loaded and unloaded while others are served."""

import gc
import time
import weakref
from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.job import SAMPLE
from models.checkpoint.loading import Checkpoint
from tests.service.waiting import eventually

from .conftest import Field, job


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


class Heavy(torch.nn.Module):
    """A field with 4 MiB of weights, so that a leak of a hundred would be noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = torch.nn.Parameter(torch.ones(1 << 20), requires_grad=False)

    def forward(self, x: torch.Tensor, t: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        return x * self.ballast[0]


def test_jobs_of_an_unloaded_model_finish(engine: Engine, field: Field) -> None:
    field.hook = lambda x, t: time.sleep(0.01)
    running = engine.submit(job(3, solver="euler", steps=20))
    waiting = engine.submit(job(3, solver="rk4", steps=5))
    arena = engine.prepared("net", 1, SAMPLE)
    assert arena is not None
    engine.unload(arena)
    assert set(running.result(60).status) == set(waiting.result(60).status) == {"success"}
    assert eventually(lambda: not engine._table.queues)
    with pytest.raises(KeyError):
        engine.submit(job(3, solver="euler", steps=20))


def test_a_model_is_freed_when_it_is_let_go(engine: Engine, net: Checkpoint) -> None:
    gc.disable()  # reference counting alone must be enough
    try:
        loaded = engine.load("other", 1, net)
        engine.submit(job(3, model="other", solver="euler", steps=2)).result(60)
        engine.unload(loaded)
        arena = weakref.ref(loaded)
        del loaded
        assert eventually(lambda: arena() is None)
    finally:
        gc.enable()


def test_the_same_version_loaded_again_outlives_the_first(engine: Engine, net: Checkpoint, field: Field) -> None:
    first = engine.prepared("net", 1, SAMPLE)
    assert first is not None
    field.hook = lambda x, t: time.sleep(0.01)
    running = engine.submit(job(3, solver="euler", steps=20))
    second = engine.load("net", 1, net)
    engine.unload(first)
    assert engine.submit(job(2, solver="euler", steps=2)).result(60).x.shape == (2, 2)
    assert set(running.result(60).status) == {"success"}
    assert eventually(lambda: [queue.arena for queue in engine._table.queues.values()] == [second])


def test_loading_does_not_stop_what_runs(engine: Engine, net: Checkpoint) -> None:
    """A job continues while another model is being measured: its network is called meanwhile."""
    ticks: list[float] = []
    held = Field(net.velocity)
    engine.load("watched", 1, Checkpoint(held, net.decoder, net.card, net.path, net.digest))
    held.hook = lambda x, t: ticks.append(time.monotonic())
    running = engine.submit(job(1, model="watched", solver="euler", steps=100_000, max_nfe=100_000))
    slow = Field(net.velocity)
    slow.hook = lambda x, t: time.sleep(0.001)
    began = time.monotonic()
    engine.load("slow", 1, Checkpoint(slow, net.decoder, net.card, net.path, net.digest))
    ended = time.monotonic()
    assert sum(began < tick < ended for tick in ticks) > 10
    engine.cancel(running)


def test_memory_of_a_hundred_cycles_levels_off(engine: Engine, net: Checkpoint) -> None:
    def cycle(number: int) -> None:
        engine.unload(engine.load("cycled", number, Checkpoint(Heavy(), net.decoder, net.card, net.path, net.digest)))

    for number in range(1, 21):
        cycle(number)
    gc.collect()
    before = resident()
    for number in range(21, 101):
        cycle(number)
    gc.collect()
    assert eventually(lambda: len(engine._table.queues) == 1)
    assert resident() - before < 40 << 20
