"""Operations sharing the engine with samples: waiting, disconnects, and what is freed."""

import asyncio
import re
import time
from typing import Any

import pytest
import torch

from engine.engine import Engine
from engine.job import SAMPLE, Draining, EngineFailed, Job
from models.checkpoint.loading import Checkpoint
from service.analysis.diagnose import JACOBIAN
from service.analysis.log_prob import LOG_PROB_EXACT
from tests.engine.conftest import Field, Observed, field, job, net  # noqa: F401
from tests.engine.conftest import Settings as EngineSettings
from tests.service.waiting import eventually

from .conftest import Real

pytestmark = pytest.mark.anyio


class CheckedConditions(Observed):
    """Records the operation of each network call."""

    def __init__(self) -> None:
        super().__init__([])
        self.operations: list[str] = []

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int) -> None:
        super().batch(model, operation, rows, requests, solvers, calls)
        self.operations += [str(operation)] * calls


def density_job(num_samples: int, **more: Any) -> Job:
    return job(num_samples, solver="euler", steps=500, t_span=(1.0, 0.0), x0=torch.zeros(num_samples, 3), **more)


@pytest.fixture
def conditions() -> CheckedConditions:
    return CheckedConditions()


@pytest.fixture
def sharing(net: Checkpoint, field: Field, conditions: CheckedConditions) -> Any:  # noqa: F811
    made = Engine(EngineSettings(), conditions)
    made.start()
    made.load("net", 1, Checkpoint(field, net.decoder, net.card, net.path, net.digest))
    made.prepare("net", 1, LOG_PROB_EXACT)
    yield made
    made.stop()


@pytest.mark.parametrize("priority", ["bulk", "interactive"])
def test_a_large_log_prob_does_not_delay_a_sample(
    sharing: Engine, conditions: CheckedConditions, priority: str
) -> None:
    large = sharing.submit(density_job(50_000, operation=LOG_PROB_EXACT, priority=priority))
    assert eventually(lambda: len(conditions.operations) > 3)
    begun = len(conditions.operations)
    sharing.submit(job(1, solver="euler", steps=50)).result(60)
    assert conditions.operations[begun:].count("sample") >= 50
    assert not large.done()
    sharing.cancel(large)
    assert eventually(lambda: sharing.active_jobs == 0)


def test_an_operation_must_be_prepared_first(sharing: Engine) -> None:
    assert sharing.prepared("net", 1, SAMPLE) is not None
    assert sharing.prepared("net", 1, JACOBIAN) is None
    with pytest.raises(KeyError):
        sharing.submit(density_job(1, operation=JACOBIAN))
    with pytest.raises(KeyError):
        sharing.prepare("net", 2, JACOBIAN)
    made = sharing.prepare("net", 1, LOG_PROB_EXACT)
    assert sharing.prepared("net", 1, LOG_PROB_EXACT) is made


def test_an_operation_is_unloaded_with_its_model_once_its_jobs_are_done(sharing: Engine, field: Field) -> None:  # noqa: F811
    field.hook = lambda x, t: time.sleep(0.001)
    running = sharing.submit(density_job(2, operation=LOG_PROB_EXACT))
    loaded = sharing.prepared("net", 1, SAMPLE)
    assert loaded is not None
    sharing.unload(loaded)
    assert set(running.result(60).status) == {"success"}
    assert eventually(lambda: not sharing._table.queues)


def test_a_network_that_raises_fails_its_job_alone(sharing: Engine, field: Field) -> None:  # noqa: F811
    def hook(x: torch.Tensor, t: torch.Tensor) -> None:
        if (x[:, 0] > 500).any():
            raise RuntimeError("pretended")

    field.hook = hook
    good = sharing.submit(density_job(3, operation=LOG_PROB_EXACT))
    x0 = torch.full((1, 3), 1000.0)
    bad = sharing.submit(job(1, solver="euler", steps=3, t_span=(1.0, 0.0), x0=x0, operation=LOG_PROB_EXACT))
    with pytest.raises(EngineFailed, match="pretended"):
        bad.result(60)
    assert set(good.result(60).status) == {"success"}


def test_a_stopped_engine_prepares_nothing(sharing: Engine) -> None:
    sharing.stop()
    with pytest.raises(Draining):
        sharing.prepare("net", 1, JACOBIAN)


# Through HTTP.


async def test_a_client_that_disconnects_frees_the_engine(real: Real) -> None:
    engine = real.service.engine
    for operation in ("encode", "log_prob"):
        body = {"samples": [[0.0, 0.0]] * 2000, "solver": "euler", "steps": 10_000, "timeout_s": 600}
        asking = asyncio.ensure_future(real.ask("net", operation, **body))
        async with asyncio.timeout(60):
            while not engine.active_lanes:
                await asyncio.sleep(0.01)
            asking.cancel()
            while engine.active_jobs:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("operation", ["log_prob", "diagnose"])
async def test_a_deadline_ends_an_operation(real: Real, operation: str) -> None:
    # Tens of thousands of calls, which no forecast knows beforehand, and time for many more than the least.
    body: dict[str, Any] = {"solver": "bosh3", "rtol": 1e-13, "atol": 1e-13, "max_nfe": 100_000, "timeout_s": 0.2}
    body |= {"num_samples": 40} if operation == "diagnose" else {"samples": [[0.0, 0.0]] * 200}
    assert (await real.ask("gaussian", operation, 504, **body))["type"] == "/problems/deadline-exceeded"
    async with asyncio.timeout(60):
        while real.service.engine.active_jobs:
            await asyncio.sleep(0.01)


async def test_an_unloaded_model_is_loaded_and_prepared_again(real: Real) -> None:
    first = await real.ask("gaussian", "log_prob", samples=[[2.0, 2.0]])
    real.service.registry.unload("gaussian")
    assert (await real.ask("gaussian", "log_prob", samples=[[2.0, 2.0]]))["log_prob"] == first["log_prob"]


async def test_metrics_tell_the_operations_apart(real: Real) -> None:
    await real.ask("net", "log_prob", samples=[[0.0, 0.0]], solver="rk4", steps=2)
    await real.ask("net", "diagnose", num_samples=1, times=[0.5])
    text = (await real.http.get("/metrics")).text
    for operation in ("sample", "log_prob_exact", "jacobian"):
        assert f'pathline_batch_rows_count{{model="net",operation="{operation}"}}' in text
    found = re.search(
        r'^pathline_requests_total\{outcome="200",route="/v1/models/\{name\}/log_prob"\} (\S+)$', text, re.M
    )
    assert found is not None
    assert float(found[1]) > 0
