"""Conditional models in the engine: a condition for each sample, guidance beside none, and its cost."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.admission import Gate, Queue
from engine.engine import Engine
from engine.job import SAMPLE
from engine.scheduler import Entry
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.guidance import guided
from models.noise import noise
from solvers import integrate

from .conftest import Board, Observed, Settings, job


def saved(root: Path, name: str, condition: Any) -> Checkpoint:
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=condition))
    return load(save(root, name, model, Decoder.identity((2,)), dataset={}, training={}, seed=0))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tmp_path_factory.mktemp("repository"), "net", NamedCondition.label(classes=5))


@pytest.fixture(scope="module")
def conditional(labels: Checkpoint) -> Iterator[Engine]:
    made = Engine(Settings())
    made.start()
    made.load("net", 1, labels)
    yield made
    made.stop()


def kept(engine: Engine) -> int:
    """Return the jobs with conditions that the arena still keeps."""
    arena = engine.prepared("net", 1, SAMPLE)
    assert arena is not None
    assert arena.network._conditions is not None
    return len(arena.network._conditions.rows.owners)


def expected(
    checkpoint: Checkpoint, condition: Any, guidance: float | None, seed: int = 0, **solver: Any
) -> torch.Tensor:
    velocity, takes, n = checkpoint.velocity, checkpoint.network_conditions, len(condition)
    assert takes is not None
    strength = torch.full((n,), 1.0 if guidance is None else guidance)
    return integrate(lambda x, t: guided(velocity, takes, x, t, condition, strength), noise(0, 0, n, (2,)), **solver).x


CONDITION = torch.tensor([0, 3, 4])
EULER = {"solver": "euler", "steps": 4}


@pytest.mark.parametrize("guidance", [None, 0.0, 1.0, 2.5])
def test_each_sample_has_its_own_condition(conditional: Engine, labels: Checkpoint, guidance: float | None) -> None:
    arena = conditional.prepared("net", 1, SAMPLE)
    assert arena is not None
    assert arena.form.path == "fused"
    result = conditional.submit(job(3, condition=CONDITION, guidance=guidance, **EULER)).result(60)
    torch.testing.assert_close(result.x, expected(labels, CONDITION, guidance, **EULER), rtol=0, atol=1e-5)
    assert result.nfe.tolist() == [4, 4, 4]
    assert result.rows == 12 * (2 if guidance == 2.5 else 1)  # two rows per call only if both velocities are needed


def test_no_condition_is_the_null(conditional: Engine) -> None:
    without = conditional.submit(job(3, **EULER)).result(60)
    null = conditional.submit(job(3, condition=torch.full((3,), 5), **EULER)).result(60)
    off = conditional.submit(job(3, condition=CONDITION, guidance=0.0, **EULER)).result(60)
    assert torch.equal(without.x, null.x)
    assert torch.equal(without.x, off.x)


def test_alone_and_among_others_are_the_same_bits(conditional: Engine) -> None:
    requests = [
        {"condition": torch.arange(n) % 5, "guidance": guidance, "seed": n, **solver}
        for n, guidance in ((3, None), (17, 2.0), (64, 0.0), (5, 1.5), (1, 1.0))
        for solver in (EULER, {"solver": "dopri5", "rtol": 1e-4, "atol": 1e-4})
    ]
    alone = [conditional.submit(job(len(each["condition"]), **each)).result(60) for each in requests]
    futures = [conditional.submit(job(len(each["condition"]), **each)) for each in requests]
    for before, future in zip(alone, futures, strict=True):
        result = future.result(60)
        assert torch.equal(before.x, result.x)
        assert before.rows == result.rows
    assert kept(conditional) == 0  # nothing is kept of finished jobs


def test_sample_i_is_the_same_in_a_large_request(conditional: Engine) -> None:
    many = torch.arange(9000) % 5  # over the row budget, so it is admitted in slices
    whole = conditional.submit(job(9000, condition=many, guidance=2.0, **EULER)).result(60)
    part = conditional.submit(job(2, condition=many[8990:8992], guidance=2.0, first_index=8990, **EULER)).result(60)
    assert torch.equal(whole.x[8990:8992], part.x)


def test_a_guided_sample_is_expected_to_cost_two_rows(conditional: Engine) -> None:
    arena = conditional.prepared("net", 1, SAMPLE)
    assert arena is not None
    queue = Queue(arena.budget, arena.tick_cost)
    gate = Gate(100, time.monotonic, Board({0: queue}))
    requests = [(1, None), (1, 0.0), (1, 1.0), (2, 2.5)]
    entries = [
        gate.take(queue, job(3, condition=CONDITION, guidance=guidance, **EULER), 0.0, Entry)
        for _, guidance in requests
    ]
    assert [entry.width for entry in entries] == [width for width, _ in requests]
    for n in (4, 3000):  # a small job and a large one
        pair = job(n, condition=torch.zeros(n, dtype=torch.int64), guidance=2.5, **EULER)
        plain = job(2 * n, condition=torch.zeros(2 * n, dtype=torch.int64), **EULER)
        guided, twice = (gate.take(queue, each, 0.0, Entry) for each in (pair, plain))
        for entry in (guided, twice):
            queue.schedulers[False].add(entry)
        assert guided.small is twice.small is (n == 4)
        assert (guided.width * n, guided.work(0), guided.calls) == (2 * n, twice.work(0), twice.calls)


def test_a_tick_of_guided_samples_is_no_longer_than_the_budget(labels: Checkpoint, observed: Observed) -> None:
    engine = Engine(Settings(), observed)
    engine.start()
    arena = engine.load("net", 1, labels)
    budget = arena.budget
    try:
        engine.submit(job(2 * budget, condition=torch.arange(2 * budget) % 5, guidance=2.0, **EULER)).result(60)
        sizes = arena.tick_cost._means
    finally:
        engine.stop()
    called = [rows for _, rows, _, _ in observed.batches]
    assert sum(called) == 4 * 2 * 2 * budget
    assert max(called) <= budget
    # The cost of ticks is learned by network rows too.
    assert {rows.bit_length() for rows in called} <= {bits for bits, size in enumerate(sizes) if size and size[2]}


def test_vectors(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "net", NamedCondition.vector(width=3, null=False))
    engine = Engine(Settings())
    engine.start()
    engine.load("net", 1, checkpoint)
    try:
        condition = torch.randn(4, 3)
        result = engine.submit(job(4, condition=condition, **EULER)).result(60)
    finally:
        engine.stop()
    torch.testing.assert_close(result.x, expected(checkpoint, condition, None, **EULER), rtol=0, atol=1e-5)


def test_cancelled_jobs_leave_nothing(conditional: Engine) -> None:
    future = conditional.submit(job(5, condition=torch.zeros(5, dtype=torch.int64), solver="euler", steps=9000))
    conditional.cancel(future)
    conditional.submit(job(3, condition=CONDITION, **EULER)).result(60)
    assert kept(conditional) == 0
