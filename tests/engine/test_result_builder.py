"""Results: where and when their memory is allocated, and their values for states that were not reached."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from engine.engine import Engine
from engine.job import EngineFailed, ResultBuilder
from solvers.errors import Status
from tests.engine.conftest import Field, job

EULER = {"solver": "euler", "steps": 4}
TIMES = np.array([0.5, 1.0])


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that allocated memory for saved states."""
    names: list[str] = []
    allocate = ResultBuilder._room_for_saved

    def counted(self: ResultBuilder) -> torch.Tensor:
        names.append(threading.current_thread().name)
        return allocate(self)

    monkeypatch.setattr(ResultBuilder, "_room_for_saved", counted)
    return names


@contextmanager
def held(engine: Engine, field: Field) -> Iterator[None]:
    """Hold the engine in a network call, so that nothing new is admitted."""
    began, go = threading.Event(), threading.Event()

    def hook(x: torch.Tensor, t: torch.Tensor) -> None:
        began.set()
        go.wait(60)

    field.hook = hook
    first = engine.submit(job(**EULER))
    assert began.wait(60)
    yield
    field.hook = lambda x, t: None
    go.set()
    first.result(60)


def test_nothing_is_allocated_at_submit(engine: Engine, field: Field, allocated: list[str]) -> None:
    with held(engine, field):
        futures = [engine.submit(job(100, save_at=TIMES, **EULER)) for _ in range(16)]
        assert allocated == []
    for future in futures:
        saved = future.result(60).saved
        assert saved is not None
        assert saved.shape == (100, 2, 2)
        assert saved.isfinite().all()
    assert set(allocated) == {"pathline-engine"}


def test_what_is_given_up_before_its_turn_is_never_allocated(
    engine: Engine, field: Field, allocated: list[str]
) -> None:
    with held(engine, field):
        for future in [engine.submit(job(100, save_at=TIMES, **EULER)) for _ in range(8)]:
            engine.cancel(future)
    assert engine.submit(job(3, **EULER)).result(60).saved is None
    assert allocated == []


def test_a_result_that_finds_no_memory_fails_alone(
    engine: Engine, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room = ResultBuilder.make_room

    def no_room(self: ResultBuilder, first: int, count: int) -> None:
        if self.job.num_samples == 7:
            raise MemoryError("no room for 7")
        make_room(self, first, count)

    monkeypatch.setattr(ResultBuilder, "make_room", no_room)
    with held(engine, field):
        bad, good = engine.submit(job(7, **EULER)), engine.submit(job(8, save_at=TIMES, **EULER))
    with pytest.raises(EngineFailed, match="no room for 7"):
        bad.result(60)
    assert (good.result(60).status == "success").all()
    assert engine.submit(job(2, **EULER)).result(60).rows == 8
    assert (engine.active_jobs, engine.active_lanes, engine.queue_depth) == (0, 0, 0)


def test_states_that_were_not_reached_are_nan() -> None:
    builder = ResultBuilder(job(4, save_at=TIMES, **EULER), (2,), torch.float32)
    assert builder.saved is None
    builder.make_room(0, 2)
    builder.make_room(0, 2)
    builder.unstarted(2, Status.DEADLINE)
    result = builder.result(0.0, lambda job, first, count: torch.full((count, 2), float(first)))
    assert result.saved is not None
    assert result.saved.shape == (4, 2, 2)
    assert result.saved.isnan().all()
    assert result.x[2:].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_kept_attempts_are_told(engine: Engine) -> None:
    reported: list[int] = []
    result = engine.submit(job(50, rtol=1e-5, atol=1e-5, on_logged=reported.append)).result(60)
    assert sum(reported) == len(result.trace) > 50
    reported.clear()
    engine.submit(job(50, on_logged=reported.append, **EULER)).result(60)
    assert reported == []
