"""The engine with its thread: batching, independence, deadlines, cancellation, failures."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.conditions import RowStore
from engine.engine import Engine
from engine.job import (
    SAMPLE,
    Draining,
    EngineFailed,
    JobResult,
    Operation,
    Overloaded,
    Priority,
    TooLate,
    TooManySamples,
)
from models.checkpoint.loading import Checkpoint
from models.noise import noise
from solvers import integrate, resolve
from solvers.known_values import KnownValues, guided
from tests.service.waiting import eventually

from .conftest import Field, Observed, Settings, job
from .simulation import Service

MIX = [
    {"solver": "euler", "steps": 20},
    {"solver": "rk4", "steps": 5, "grid": {"name": "shift", "value": 3.0}},
    {"solver": "dopri5"},
    {"solver": "tsit5", "rtol": 1e-3, "atol": 1e-4},
    {"solver": "bosh3", "rtol": 1e-3, "atol": 1e-3, "error_control": "batch"},
    {"solver": "ab3", "steps": 9, "start": "rk"},
    {"solver": "dopri5", "steps": 3},
]


def same(a: JobResult, b: JobResult) -> bool:
    return (
        torch.equal(a.x.view(torch.int32), b.x.view(torch.int32))
        and np.array_equal(a.nfe, b.nfe)
        and np.array_equal(a.t, b.t)
        and all(
            np.array_equal(getattr(a.trace, name), getattr(b.trace, name), equal_nan=name in ("error", "stiffness"))
            for name in ("sample", "t", "h", "error", "accepted", "stiffness")
        )
    )


def test_results_are_what_integrate_gives_from_the_same_noise(engine: Engine, net: Checkpoint) -> None:
    result = engine.submit(job(7, solver="dopri5", seed=3, trace="full")).result(60)
    solution = integrate(net.velocity, noise(3, 0, 7, (2,)), solver="dopri5")
    torch.testing.assert_close(result.x, solution.x, rtol=0, atol=1e-5)
    assert set(result.status) == {"success"}
    assert result.rows == result.nfe.sum()
    assert len(result.trace) == len(result.trace.h) > 0


def test_alone_and_among_others_are_the_same_bits(engine: Engine, observed: Observed) -> None:
    jobs = [job(1 + 5 * k % 17, seed=k, trace="full", **MIX[k % len(MIX)]) for k in range(42)]
    alone = [engine.submit(each).result(60) for each in jobs]
    observed.batches.clear()
    futures = [engine.submit(each) for each in jobs]
    together = [future.result(30) for future in futures]
    assert max(requests for _, _, requests, _ in observed.batches) > 20
    assert max(solvers for _, _, _, solvers in observed.batches) >= 6
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("arguments", [MIX[0], MIX[2], MIX[5]])
def test_sample_i_is_the_same_in_a_request_of_one(engine: Engine, arguments: dict) -> None:
    many = engine.submit(job(3000, seed=5, **arguments)).result(60)
    for index in (0, 1, 1234, 2999):
        one = engine.submit(job(1, seed=5, first_index=index, **arguments)).result(60)
        assert torch.equal(one.x[0], many.x[index])
        assert one.nfe[0] == many.nfe[index]


def test_batch_control_is_the_same_beside_other_requests(engine: Engine) -> None:
    alone = engine.submit(job(40, solver="dopri5", error_control="batch", trace="full")).result(60)
    assert len(set(alone.nfe)) == 1
    big = engine.submit(job(2000, solver="euler", steps=200))
    beside = engine.submit(job(40, solver="dopri5", error_control="batch", trace="full")).result(30)
    engine.cancel(big)
    assert same(alone, beside)


def test_samples_that_share_their_steps_fit_into_one_part_of_the_row_budget(engine: Engine) -> None:
    arena = engine.prepared("net", 1, SAMPLE)
    assert arena is not None
    most, shared = arena.budget // 4, {"solver": "bosh3", "rtol": 1e-2, "atol": 1e-2, "error_control": "batch"}
    result, bulk = (engine.submit(job(most, priority=each, **shared)).result(60) for each in Priority)
    assert len(set(result.nfe)) == 1
    assert same(result, bulk)
    with pytest.raises(TooManySamples, match=f"num_samples = {most + 1} .* use at most {most},"):
        engine.submit(job(most + 1, **shared))
    with pytest.raises(TooManySamples, match=f"use at most {most // 2},"):
        engine.submit(job(most, guidance=2.0, **shared))


def test_exact_on_the_analytic_gaussian(engine: Engine, gaussian: Checkpoint) -> None:
    engine.load("gaussian", 1, gaussian)
    arguments = {"rtol": 1e-8, "atol": 1e-8, "dtype": torch.float64}
    result = engine.submit(job(50, model="gaussian", seed=1, **arguments)).result(60)
    exact = 2.0 + 0.5 * noise(1, 0, 50, (2,), torch.float64)
    assert (result.x - exact).abs().max() < 1e-6


def test_saved_states_come_in_order(engine: Engine) -> None:
    save_at = np.array([0.0, 0.25, 1.0])
    result = engine.submit(job(5, solver="rk4", steps=4, save_at=save_at)).result(60)
    assert result.saved is not None
    assert torch.equal(result.saved[:, 0], noise(0, 0, 5, (2,)))
    assert torch.equal(result.saved[:, 2], result.x)


def test_given_starting_states_and_a_part_of_the_span(engine: Engine) -> None:
    x0 = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    there = engine.submit(job(3, x0=x0, t_span=(1.0, 0.0), rtol=1e-6, atol=1e-6)).result(60)
    back = engine.submit(job(3, x0=there.x, rtol=1e-6, atol=1e-6)).result(60)
    torch.testing.assert_close(back.x, x0, rtol=0, atol=1e-4)


def slow(seconds: float) -> Callable[[Tensor, Tensor], None]:
    return lambda x, t: time.sleep(seconds)


def test_a_deadline_ends_a_job_with_an_error_or_with_what_was_reached(engine: Engine, field: Field) -> None:
    field.hook = slow(0.01)
    with pytest.raises(TooLate):
        engine.submit(job(4, solver="dopri5", deadline=time.monotonic() + 0.1)).result(60)
    assert eventually(lambda: engine.active_lanes == 0)
    arguments = {"solver": "euler", "steps": 500, "partial": True}
    result = engine.submit(job(100_000, deadline=time.monotonic() + 1.0, **arguments)).result(60)
    assert set(result.status) == {"deadline"}
    assert 0 < result.t[0] < 1
    assert result.t[-1] == 0
    assert torch.equal(result.x[-1], noise(0, 99_999, 1, (2,))[0])
    assert engine.active_jobs == 0


def test_cancelled_jobs_leave_within_a_tick(engine: Engine, field: Field, observed: Observed) -> None:
    field.hook = slow(0.005)
    running = engine.submit(job(4, solver="euler", steps=2000))
    assert eventually(lambda: engine.active_lanes == 4)
    queued = [engine.submit(job(100_000, solver="euler", steps=2000)) for _ in range(3)]
    for future in [running, *queued]:
        engine.cancel(future)
    assert eventually(lambda: engine.active_jobs == 0)
    assert engine.active_lanes == 0
    assert observed.cancelled_nfe > 0
    count = len(observed.batches)
    time.sleep(0.05)
    assert len(observed.batches) == count


def test_a_small_job_is_not_held_up_by_a_large_one(engine: Engine, observed: Observed) -> None:
    large = engine.submit(job(100_000, solver="euler", steps=100))
    assert eventually(lambda: engine.active_lanes > 0)
    ticks = len(observed.batches)
    engine.submit(job(1, solver="euler", steps=10)).result(60)
    assert len(observed.batches) - ticks < 40
    assert not large.done()
    engine.cancel(large)


def test_models_share_the_device(engine: Engine, gaussian: Checkpoint, observed: Observed) -> None:
    engine.load("gaussian", 1, gaussian)
    large = engine.submit(job(100_000, solver="euler", steps=100))
    other = engine.submit(job(100, model="gaussian", solver="euler", steps=30, dtype=torch.float64))
    other.result(60)
    assert not large.done()
    engine.cancel(large)
    assert {model for model, *_ in observed.batches} == {"net", "gaussian"}


def test_a_model_that_was_idle_has_saved_no_time_up(engine: Engine, gaussian: Checkpoint) -> None:
    engine.load("gaussian", 1, gaussian)
    engine.submit(job(500, solver="euler", steps=200)).result(60)
    engine.submit(job(1, model="gaussian", solver="euler", steps=1, dtype=torch.float64)).result(60)
    used = {queue.name: queue.used_s for queue in engine._table.queues.values()}
    assert used["gaussian"] > 0.5 * used["net"] > 0


def test_what_a_request_waits_for_is_measured_at_the_engines_priority(
    net: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(Settings())
    make = engine._make
    nice: list[int] = []

    def noted(*arguments: Any) -> Any:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return make(*arguments)

    monkeypatch.setattr(engine, "_make", noted)
    engine.start()
    try:
        engine.load("net", 1, net)
        engine.prepare("net", 1, Operation("other"))
    finally:
        engine.stop()
    assert nice[0] > nice[1] == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_turn_lasts_from_the_first_job_and_from_each_turn_after_it(net: Checkpoint) -> None:
    service = Service(net)
    world, engine = service.world, service.engine
    assert engine.turn_s == 0
    service.ask(limit_s=60.0, solver="euler", steps=2)
    world.now += 3
    assert engine.turn_s == 3
    engine.turn()
    world.now += 2
    assert engine.turn_s > 2
    service.run()
    assert engine.turn_s == 0


def test_a_full_queue_says_when_to_come_back(net: Checkpoint) -> None:
    engine = Engine(Settings(max_queue=2))
    engine.start()
    engine.load("net", 1, net)
    futures = [engine.submit(job(100_000, solver="euler", steps=1000)) for _ in range(2)]
    with pytest.raises(Overloaded) as caught:
        engine.submit(job())
    assert caught.value.retry_after_s > 0
    engine.stop()
    for future in futures:
        with pytest.raises(EngineFailed):
            future.result(60)


def test_a_draining_engine_finishes_what_it_has(engine: Engine) -> None:
    running = engine.submit(job(50, solver="euler", steps=100))
    engine.drain()
    with pytest.raises(Draining):
        engine.submit(job())
    assert set(running.result(60).status) == {"success"}


def test_giving_up_tells_everybody(engine: Engine, field: Field) -> None:
    field.hook = slow(0.01)
    futures = [engine.submit(job(num, solver="euler", steps=1000)) for num in (1, 100_000)]
    engine.give_up()
    for future in futures:
        with pytest.raises(Draining):
            future.result(60)
    assert eventually(lambda: engine.active_jobs == engine.active_lanes == 0)


def test_rows_that_make_the_network_raise_fail_their_job_alone(engine: Engine, field: Field) -> None:
    def hook(x: Tensor, t: Tensor) -> None:
        if (x[:, 0] > 500).any():
            raise RuntimeError("out of memory (pretended)")

    field.hook = hook
    good = engine.submit(job(6, solver="rk4", steps=50, seed=2))
    bad = engine.submit(job(2, solver="rk4", steps=5, x0=torch.tensor([[0.0, 0.0], [1000.0, 0.0]])))
    with pytest.raises(EngineFailed, match="pretended"):
        bad.result(60)
    field.hook = lambda x, t: None
    assert same(good.result(60), engine.submit(job(6, solver="rk4", steps=50, seed=2)).result(60))


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_memory_that_suffices_for_slices_only_costs_nobody_anything(
    engine: Engine, field: Field, kind: type[Exception]
) -> None:
    expected = engine.submit(job(40, solver="rk4", steps=5)).result(60)

    def hook(x: Tensor, t: Tensor) -> None:
        if len(x) > 8:
            raise kind("too many rows")

    field.hook = hook
    assert same(engine.submit(job(40, solver="rk4", steps=5)).result(60), expected)


def test_what_guides_a_job_in_slices_is_stored_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, calls, add = Operation("guided", correction=guided, rows=3), list[int](), RowStore.add
    n = 2 * engine.prepare("net", 1, operation).budget

    def counted(store: RowStore, rows: Tensor) -> NDArray[np.int64]:
        calls.append(len(rows))
        return add(store, rows)

    monkeypatch.setattr(RowStore, "add", counted)
    known = KnownValues(torch.linspace(-1.0, 1.0, 2 * n).reshape(n, 2), torch.tensor([1.0, 0.5]).expand(n, -1))
    result = engine.submit(
        job(n, solver="euler", steps=2, operation=operation, known=known, constants=known.constants())
    ).result(60)
    assert (calls, set(result.status), result.rows) == ([n], {"success"}, 6 * n)


def test_jobs_that_were_to_be_admitted_together_are_admitted_once(
    engine: Engine, field: Field, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out for the second of two: both are retried alone, and the first gets no lanes twice."""
    arena = engine.prepared("net", 1, SAMPLE)
    assert arena is not None
    bank = arena.lanes[False].bank
    real, failed = bank.hold, threading.Event()

    heun2 = resolve(solver="heun2", steps=4).rows

    def short(item: Any) -> Any:
        if item is heun2 and not failed.is_set():
            failed.set()
            raise MemoryError
        return real(item)

    monkeypatch.setattr(bank, "hold", short)
    entered, go = threading.Event(), threading.Event()

    def hook(x: Tensor, t: Tensor) -> None:
        entered.set()
        assert go.wait(60)

    field.hook = hook
    busy = engine.submit(job(1, solver="euler", steps=1))
    assert entered.wait(60)
    first, second = (engine.submit(job(3, solver=name, steps=4)) for name in ("rk4", "heun2"))
    go.set()
    results = [each.result(60) for each in (busy, first, second)]
    assert failed.is_set()
    assert [result.nfe.tolist() for result in results] == [[1], [16] * 3, [8] * 3]
    assert sum(rows for _, rows, _, _ in observed.batches) == 1 + 3 * 16 + 3 * 8


def test_a_diverging_request_changes_no_other(engine: Engine) -> None:
    expected = engine.submit(job(8, solver="dopri5", trace="full")).result(60)
    good = engine.submit(job(8, solver="dopri5", trace="full"))
    bad = engine.submit(job(2, solver="dopri5", x0=torch.tensor([[float("nan"), 0.0], [0.0, 0.0]])))
    assert list(bad.result(60).status) == ["non_finite", "success"]
    assert same(good.result(60), expected)


def test_a_broken_fixed_step_stands_in_the_trace(engine: Engine) -> None:
    x0 = torch.tensor([[float("inf"), 0.0], [0.0, 0.0]])
    result = engine.submit(job(2, solver="rk4", steps=2, x0=x0, trace="full")).result(60)
    assert list(result.status) == ["non_finite", "success"]
    assert result.trace.sample.tolist() == [0, 1, 1]
    assert result.trace.accepted.tolist() == [False, True, True]
    assert np.isinf(result.trace.error[0])


def test_a_deadline_that_has_passed_on_an_idle_engine_is_not_overload(engine: Engine) -> None:
    with pytest.raises(TooLate):
        engine.submit(job(deadline=time.monotonic() - 1)).result(60)


def test_max_nfe_too_small_to_begin_costs_no_call(engine: Engine, observed: Observed) -> None:
    result = engine.submit(job(2, solver="dopri5", max_nfe=3)).result(60)
    assert list(result.status) == ["max_nfe", "max_nfe"]
    assert list(result.nfe) == [0, 0]
    assert observed.batches == []


class Crossings:
    """An event loop that counts calls from other threads."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[[Any], None], delivered: list[Any]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.delivered.append(len(delivered))
        callback(delivered)


def test_what_ends_in_one_turn_is_delivered_in_one_call(engine: Engine, field: Field) -> None:
    entered, go, crossings = threading.Event(), threading.Event(), Crossings()

    def hook(x: Tensor, t: Tensor) -> None:
        entered.set()
        assert go.wait(60)

    field.hook = hook
    engine.deliver_on(crossings)  # pyright: ignore[reportArgumentType]
    first = engine.submit(job(1, solver="euler", steps=1))
    assert entered.wait(60)
    futures = [engine.submit(job(1, solver="euler", steps=3, seed=k)) for k in range(20)]
    engine.cancel(cancelled := engine.submit(job(1, solver="euler", steps=3)))
    go.set()
    for future in (first, *futures):
        future.result(60)
    assert cancelled.cancelled()
    assert crossings.delivered == [2, 20]  # the first and the cancelled one between two ticks
    crossings.closed = True
    assert engine.submit(job(1, solver="euler", steps=1)).result(60).rows == 1


def test_a_dead_thread_answers_everybody(engine: Engine, field: Field) -> None:
    entered, go = threading.Event(), threading.Event()

    def die(x: Tensor, t: Tensor) -> None:
        entered.set()
        go.wait(60)
        raise SystemExit

    field.hook = die
    futures = [engine.submit(job(1, solver="euler", steps=1000))]
    assert entered.wait(60)
    futures.append(engine.submit(job(1, solver="euler", steps=1000)))  # not yet seen when the thread dies
    go.set()
    for future in futures:
        with pytest.raises(EngineFailed):
            future.result(60)
    assert eventually(lambda: not engine.alive)
    with pytest.raises((EngineFailed, Draining)):
        engine.submit(job())
