"""Stages: slices are shared among requests, failures are isolated, and non-finite states are left out."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.device import Device
from engine.engine import Engine
from engine.job import EngineFailed, Job, JobResult, Priority, TooLate
from engine.stages import Pass, Stage, decoder_pass, without_kept
from models.checkpoint.loading import Checkpoint, load
from models.condition_values import Values
from solvers import resolve
from solvers.cache import BytesCache
from solvers.trace import StepTrace
from tests.service.latent import HIGH, imported

from .conftest import Observed, Settings

CPU = Device(torch.device("cpu"))


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("latent")
    return load(imported(folder, folder / "repository").path)


class Counted:
    """Doubles numbers, and fails if one is over 5; counts calls and their rows."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        if (x > HIGH).any():
            raise ValueError("too high")
        self.rows.append(len(x))
        return 2 * x, x > 0


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def stage(latent: Checkpoint, counted: Counted, tmp_path: Path) -> Stage:
    there = replace(latent, path=tmp_path)  # without the measurements of others

    def examples(rows: int) -> tuple[Tensor, ...]:
        return (torch.linspace(-1, 1, rows)[:, None].expand(rows, 3),)

    made = Stage("decoder", counted, examples, there, CPU)
    made.at_once = 8
    counted.rows.clear()
    return made


def rows(of: Tensor, done: list[Any], bulk: bool = False) -> Pass:
    return Pass("job", [of], lambda out: done.append(out), bulk)


def run(stage: Stage) -> Iterator[Any]:
    while stage.passes:
        turn = stage.turn()
        for each in turn.ended:
            each.then(each.out)
        yield turn


def test_small_passes_do_not_wait_for_a_large_one(stage: Stage) -> None:
    done: list[Any] = []
    large, small = torch.randn(100, 3), torch.randn(2, 3)
    stage.passes.extend([rows(large, done), rows(small, done)])
    turns = list(run(stage))
    assert max(turn.rows for turn in turns) <= 8
    assert len(turns) == 13
    assert [len(out[0]) for out in done] == [2, 100]
    assert torch.equal(done[0][0], 2 * small)
    assert torch.equal(done[1][0], 2 * large)
    assert torch.equal(done[1][1], large > 0)


def test_bulk_yields_but_is_not_left_out(stage: Stage) -> None:
    done: list[Any] = []
    stage.passes.extend([rows(torch.randn(160, 3), done, bulk=True), rows(torch.randn(160, 3), done)])
    first = [stage.turn() for _ in range(20)]
    assert all(not turn.bulk for turn in first[:7])
    assert first[7].bulk
    list(run(stage))
    assert len(done) == 2


def test_what_fails_is_told_apart_from_its_company(stage: Stage) -> None:
    done: list[Any] = []
    bad = torch.zeros(6, 3)
    bad[4] = 9.0
    good = [rows(torch.randn(3, 3).clamp(max=1), done) for _ in range(3)]
    failing = rows(bad, done)
    stage.passes.extend([*good[:2], failing, good[2]])
    failed = [turn.failed for turn in run(stage)]
    assert [pass_ for turn in failed for pass_ in turn] == [failing]
    assert any("the decoder failed: ValueError: too high" in message for turn in failed for message in turn.values())
    assert len(done) == 3


def test_calls_with_large_results_have_few_rows(latent: Checkpoint, tmp_path: Path) -> None:
    rows: list[int] = []

    def large(x: Tensor) -> tuple[Tensor, ...]:
        rows.append(len(x))
        return (x[:, :1].expand(len(x), 1 << 22),)

    there = replace(latent, path=tmp_path)
    made = Stage("decoder", large, lambda count: (torch.linspace(-1, 1, count)[:, None].expand(count, 3),), there, CPU)
    assert max(rows) <= 4
    assert made.deterministic


def result_of(x: Tensor, saved: Tensor | None = None) -> JobResult:
    n = len(x)
    empty = np.zeros(n)
    return JobResult(
        x, saved, empty, empty.astype(np.int64), np.full(n, "success"), StepTrace.empty(), 0, 0.0, 0.0, 0.0
    )


def job(samples: int, checkpoint: Checkpoint, **more: Any) -> Job:
    solve = resolve(solver="euler", steps=2, dtype=torch.float32)
    assert checkpoint.request_conditions is not None
    inputs = Values(checkpoint.request_conditions, {}, samples, torch.float32).tensors()
    return Job("latent", 1, solve, samples, **({"decode": True, "conditions": inputs} | more))


def test_states_that_are_not_finite_are_not_decoded(latent: Checkpoint) -> None:
    x, saved = torch.randn(3, 4), torch.randn(3, 2, 4)
    x[1, 2], saved[0, 1, 0] = torch.nan, torch.inf
    found: list[JobResult] = []
    rows = decoder_pass(latent, "job", job(3, latent), result_of(x, saved), found.append)
    assert rows is not None
    assert rows.rows == 9 - 2
    rows.then([latent.decoder.decode(rows.arguments[0])])
    [decoded] = found
    assert decoded.data is not None
    assert decoded.saved_data is not None
    assert decoded.data.shape == (3, 3, 2, 2)
    assert decoded.data[1].isnan().all()
    assert decoded.saved_data[0, 1].isnan().all()
    assert torch.allclose(decoded.data[2], latent.decoder.decode(x[2:])[0])
    assert torch.allclose(decoded.saved_data[2, 0], latent.decoder.decode(saved[2, :1])[0])
    assert decoder_pass(latent, "job", job(3, latent), result_of(x * torch.nan), found.append) is None
    assert found[-1].data is not None
    assert found[-1].data.isnan().all()


@pytest.fixture(scope="module")
def engine(latent: Checkpoint) -> Iterator[Engine]:
    running = Engine(Settings())
    running.start()
    running.load("latent", 1, latent)
    yield running
    running.stop()


def test_jobs_are_decoded_beside_each_other(engine: Engine, latent: Checkpoint) -> None:
    jobs = [job(n, latent, seed=n, priority=p) for n in (1, 300, 7) for p in Priority]
    alone = [engine.submit(each).result(60) for each in jobs]
    together = [future.result(60) for future in [engine.submit(each) for each in jobs]]
    for before, after in zip(alone, together, strict=True):
        assert before.data is not None
        assert after.data is not None
        assert torch.equal(before.data, after.data)
        assert after.prelude_s is not None
        assert after.decoder_s is not None


def test_results_of_the_prelude_are_kept_with_the_bits_of_a_miss(engine: Engine, latent: Checkpoint) -> None:
    observed = Observed([])
    running = Engine(Settings(prelude_cache_bytes=1 << 20), observed)
    running.start()
    try:
        running.load("latent", 1, latent)
        jobs = [job(n, latent, seed=n) for n in (3, 1, 3)]
        for each in (*jobs, *jobs):
            result = running.submit(each).result(60)
            assert torch.equal(result.x, engine.submit(each).result(60).x)
            assert result.prelude_s is not None
    finally:
        running.stop()
    assert observed.preludes[0][0] == 0 < observed.preludes[0][1]
    assert all(misses == 0 < hits for hits, misses in observed.preludes[3:])


def test_a_prelude_cache_keeps_what_was_used_last_up_to_its_bytes() -> None:
    cache = BytesCache[bytes, tuple[Tensor, ...]](2 * 8, lambda row: sum(tensor.nbytes for tensor in row))
    results: list[list[float]] = []

    def ask(*numbers: float, version: str = "v") -> int:
        """Return the number of rows that were kept; the others are doubled."""
        rows = Pass("job", [torch.tensor(numbers)[:, None]], lambda out: results.append(out[0][:, 0].tolist()))
        left, hits = without_kept(cache, version, rows)
        if left is not None:
            left.then([2 * left.arguments[0].double()])
        assert results[-1] == [2 * number for number in numbers]
        return hits

    assert [ask(1, 2), ask(2, 1), ask(1, 3), ask(1), ask(3), ask(2)] == [0, 2, 1, 1, 1, 0]
    assert cache.bytes == 16
    assert ask(2, version="another") == 0
    rows = Pass("job", [torch.zeros(1, 1)], print)
    assert without_kept(BytesCache(0, len), "v", rows) == (rows, 0)


def test_a_small_request_does_not_wait_for_a_large_one_to_be_decoded(engine: Engine, latent: Checkpoint) -> None:
    decoder = engine._versions["latent", 1].decoder
    assert decoder is not None
    before, decoder.at_once = decoder.at_once, 1  # very many slices
    try:
        large = engine.submit(job(3000, latent, seed=1))
        small = engine.submit(job(1, latent, seed=2)).result(60)
        assert small.data is not None
        assert not large.done()
        engine.cancel(large)
    finally:
        decoder.at_once = before


def test_a_job_that_is_late_leaves_the_decoder(
    engine: Engine, latent: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = engine._versions["latent", 1].decoder
    assert decoder is not None
    inside, end = decoder._call, time.monotonic() + 2.0

    def slow(*given: Tensor) -> Tensor:
        while time.monotonic() < end:  # the first slice takes until the job is late
            time.sleep(0.01)
        return inside(*given)

    monkeypatch.setattr(decoder, "at_once", 1)
    monkeypatch.setattr(decoder, "_call", slow)
    with pytest.raises(TooLate):
        engine.submit(job(3, latent, seed=3, deadline=end)).result(60)
    assert not decoder.passes


def test_cancelled_and_late_jobs_leave_the_stages(engine: Engine, latent: Checkpoint) -> None:
    futures = [engine.submit(job(5000, latent, seed=k)) for k in range(4)]
    for future in futures[:2]:
        engine.cancel(future)
    for future in futures[2:]:
        data = future.result(60).data
        assert data is not None
        assert len(data) == 5000
    assert all(future.done() for future in futures)
    assert engine.active_jobs == 0


def test_a_decoder_that_fails_is_the_fault_of_its_job(engine: Engine, latent: Checkpoint) -> None:
    high = torch.full((2, 4), 9.0)
    failing, good = engine.submit(job(2, latent, x0=high)), engine.submit(job(2, latent))
    with pytest.raises(EngineFailed, match="the decoder failed"):
        failing.result(60)
    assert good.result(60).data is not None
    assert engine.submit(job(2, latent, x0=high, decode=False)).result(60).data is None
