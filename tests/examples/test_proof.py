"""The proof of each example that needs no package of its own; `tests/system` has the others.

The engine waits until all 16 requests have come, so that the rows of a call do not depend on the speed of the machine.
"""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.job import Job, JobResult
from engine.loop import Loop
from tests.examples.proof import CASES, REQUESTS, ROUNDING, Served, apart, serving

pytestmark = pytest.mark.anyio


SHORT = ({"T": 16}, {"T": 8})
"""Shapes of networks with a free axis."""


class Gate:
    """Holds the engine, once closed, until a number of jobs have come."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._open, self._missing = threading.Event(), 0
        self._open.set()
        turn, submit = Loop.turn, Engine.submit

        def held(loop: Loop) -> bool:
            assert self._open.wait(120), f"{self._missing} jobs have not come"
            return turn(loop)

        def counted(engine: Engine, job: Job, future: asyncio.Future[JobResult]) -> asyncio.Future[JobResult]:
            submit(engine, job, future)
            self._missing -= 1
            if self._missing == 0:
                self._open.set()
            return future

        patch.setattr(Loop, "turn", held)
        patch.setattr(Engine, "submit", counted)

    def close(self, jobs: int) -> None:
        """Hold the engine until so many jobs have come."""
        self._missing = jobs
        self._open.clear()


@pytest.mark.parametrize(
    ("name", "shares"),
    [("action_transformer", True), ("edm", True), ("latent_image", True), ("mel_decoder", False)],
)
async def test_samples_are_those_of_a_plain_loop_in_any_company(
    name: str, shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, case = Gate(monkeypatch), CASES[name](tmp_path)
    case = replace(case, shapes=SHORT) if case.free else case
    async with serving(tmp_path) as http:
        for several in case.both:
            service = Served(case, http, several)
            begun = await service.calls()
            alone = await service.one_by_one()
            between = await service.calls()
            gate.close(REQUESTS)
            assert await asyncio.wait_for(service.at_once(), 300) == alone
            together = await service.calls()
            assert apart(alone, case, several) <= ROUNDING
            (rows, calls), (rows_together, calls_together) = between - begun, together - between
            assert rows_together == rows
            assert not shares or calls_together * 3 < calls  # others are called with one row at a time
