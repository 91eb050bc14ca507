"""Operations of a model are prepared on first use."""

import asyncio
import threading
import time
from typing import Any

import pytest

from engine.job import Draining
from service.analysis.diagnose import JACOBIAN
from service.errors import Kind, ProblemError
from tests.service.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("no derivative"), Kind.INVALID),
        (MemoryError("full"), Kind.ENGINE),
        (Draining(), Kind.DRAINING),
    ],
)
async def test_a_model_that_cannot_be_made_ready(running: Any, error: Exception, kind: Kind) -> None:
    running.engine.unready = error
    registry = running.service.registry
    with await running.service.lease("moons", None) as model:
        with pytest.raises(ProblemError) as caught:
            await registry.prepare(model, JACOBIAN, time.monotonic() + 5)
        assert caught.value.kind is kind
        running.engine.unready = None
        assert await registry.prepare(model, JACOBIAN, time.monotonic() + 5)
    assert model.leases.out == 1  # the registry's own


async def test_making_ready_is_done_once_and_waited_for_no_longer_than_allowed(running: Any) -> None:
    go, engine, service = threading.Event(), running.engine, running.service
    prepare, ready = engine.prepare, service.registry.prepare

    def slowly(*arguments: Any) -> Any:
        go.wait(60)
        return prepare(*arguments)

    engine.prepare = slowly
    with await service.lease("moons", None) as model:
        waiting = [asyncio.ensure_future(ready(model, JACOBIAN, time.monotonic() + 60)) for _ in range(3)]
        with pytest.raises(ProblemError, match="for the first time") as caught:
            await ready(model, JACOBIAN, time.monotonic() + 0.01)
        assert caught.value.kind is Kind.DEADLINE
        go.set()
        await asyncio.gather(*waiting)
    assert len(engine.ready) == 1
    assert model.leases.out == 1  # the registry's own


async def test_a_model_is_leased_while_it_is_made_ready_also_when_nobody_waits_any_more(running: Any) -> None:
    go, entered, engine, service = threading.Event(), threading.Event(), running.engine, running.service
    prepare = engine.prepare

    def slowly(*arguments: Any) -> Any:
        entered.set()
        go.wait(60)
        return prepare(*arguments)

    engine.prepare = slowly
    with await service.lease("moons", None) as model:
        waits = asyncio.ensure_future(service.registry.prepare(model, JACOBIAN, time.monotonic() + 60))
        await asyncio.to_thread(entered.wait, 10)
        waits.cancel()
        await asyncio.wait([waits])
    assert model.leases.out == 2  # the registry's own, and that of the loading thread
    go.set()
    assert await asyncio.to_thread(eventually, lambda: model.leases.out == 1)
