"""Operations of a model are made ready when they are first asked for."""

import asyncio
import threading
import time
from typing import Any

import pytest

from service.engine.job import Draining
from service.engine.operation import Operation
from service.errors import Kind, ProblemError

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
    model = await running.service.model("moons", None)
    with pytest.raises(ProblemError) as caught:
        await running.service.ready(model, Operation.JACOBIAN, time.monotonic() + 5)
    assert caught.value.kind is kind
    assert running.service._preparing == {}


async def test_making_ready_is_done_once_and_waited_for_no_longer_than_allowed(running: Any) -> None:
    go, engine, service = threading.Event(), running.engine, running.service
    prepare = engine.prepare

    def slowly(*asked: Any) -> Any:
        go.wait(10)
        return prepare(*asked)

    engine.prepare = slowly
    model = await service.model("moons", None)
    waiting = [asyncio.ensure_future(service.ready(model, Operation.JACOBIAN, time.monotonic() + 10)) for _ in range(3)]
    with pytest.raises(ProblemError, match="for the first time") as caught:
        await service.ready(model, Operation.JACOBIAN, time.monotonic() + 0.01)
    assert caught.value.kind is Kind.DEADLINE
    go.set()
    await asyncio.gather(*waiting)
    assert len(engine.ready) == 1
