"""The network's path: fused if there is a fused form, else the torch module, and reported in both cases."""

import logging
from collections.abc import Iterator

import pytest
import torch

from engine.arena import Arena
from engine.device import device_of
from engine.engine import Engine
from engine.job import SAMPLE
from models.checkpoint.loading import Checkpoint
from service.analysis.diagnose import JACOBIAN

from .conftest import Settings, job

CPU = torch.device("cpu")


def test_a_residual_mlp_is_fused_and_its_derivatives_are_not(net: Checkpoint) -> None:
    arena = Arena(net, device_of(CPU))
    assert (arena.form.path, arena.form.reason, arena.deterministic) == ("fused", "", True)
    assert (arena.network.call.limit, arena.network.call.counts) == (1024, ())
    beside = Arena(net, device_of(CPU), operation=JACOBIAN)
    assert beside.form.path == "eager"


def test_the_setting_keeps_the_torch_module(net: Checkpoint) -> None:
    found = {}
    for choice in ("auto", "off"):
        engine = Engine(Settings(compile=choice))
        engine.start()
        try:
            loaded = engine.load("net", 1, net)
            assert loaded.form.path == ("fused" if choice == "auto" else "eager")
            assert loaded.form.reason == ("" if choice == "auto" else "PATHLINE_COMPILE is off")
            found[choice] = engine.submit(job(9, solver="rk4", steps=20)).result(60).x
        finally:
            engine.stop()
    torch.testing.assert_close(found["auto"], found["off"], rtol=1e-5, atol=1e-5)


def test_where_it_cannot_be_compiled_one_line_says_so(
    net: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("models.forms.fused.residual_mlp.FusedResidualMLP", fail)
    with caplog.at_level(logging.WARNING, "pathline"):
        arena = Arena(net, device_of(CPU))
    assert arena.form.path == "eager"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("the fused form could not be compiled: RuntimeError: no compiler")


@pytest.fixture
def loaded(net: Checkpoint) -> Iterator[tuple[Engine, Arena]]:
    """Return a running engine with `net` and its arena."""
    engine = Engine(Settings())
    engine.start()
    try:
        engine.load("net", 1, net)
        arena = engine.prepared("net", 1, SAMPLE)
        assert arena is not None
        yield engine, arena
    finally:
        engine.stop()


def test_a_plan_alone_runs_in_few_compiled_calls(loaded: tuple[Engine, Arena], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine checks commands and deadlines between them, so there is more than one."""
    engine, arena = loaded
    network = arena.network
    made: list[int] = []
    real = network.run

    def counted(*arguments: object) -> object:
        ran = real(*arguments)  # pyright: ignore[reportArgumentType]
        if ran is not None:
            made.append(ran[1])
        return ran

    monkeypatch.setattr(network, "run", counted)
    engine.submit(job(1, solver="rk4", steps=500)).result(60)
    assert sum(made) == 2000
    assert len(made) < 2000


def test_lanes_that_wait_for_others_are_not_evaluated(loaded: tuple[Engine, Arena]) -> None:
    """Jobs that end a few ticks apart are collected together, and the rows paid for are those of their calls."""
    engine, arena = loaded
    before = arena.network.rows
    futures = [engine.submit(job(2, solver="rk4", steps=steps, seed=steps)) for steps in range(20, 60)]
    results = [future.result(60) for future in futures]
    assert arena.network.rows - before == sum(result.rows for result in results)
    for steps, result in zip(range(20, 60), results, strict=True):
        assert result.nfe.tolist() == [4 * steps] * 2
