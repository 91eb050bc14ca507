"""The robot policy in closed loop, without a clock: robots wait for their answers before each tick."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pathline import AsyncClient

from tests.clients.support import in_process
from tests.examples.support import load_example

pytestmark = pytest.mark.anyio

ROBOTS, TICKS = 3, 40


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("robot_policy")


@pytest.fixture(scope="module")
async def client(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncClient]:
    repository = tmp_path_factory.mktemp("checkpoints")
    example.trained(repository, steps=3, hidden=16)
    async with in_process(repository) as client:
        yield client


@pytest.mark.parametrize("mode", [None, "replace", "guided"])
async def test_chunks_continue_what_is_committed(
    example: ModuleType, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    robots = [example.Robot(number, mode) for number in range(ROBOTS)]
    sample, asked = client.sample, []

    async def patient(*args: Any, timeout_s: float, **members: Any) -> Any:
        asked.append((timeout_s, members))
        return await sample(*args, timeout_s=60, **members)

    async def lockstep(tick: int) -> bool:
        await asyncio.gather(*(robot.request for robot in robots if robot.request))
        return False

    monkeypatch.setattr(client, "sample", patient)
    await example.control(client, robots, TICKS, lockstep)

    each = TICKS // example.EVERY
    assert len(asked) == ROBOTS * each
    for robot in robots:
        assert np.shape(robot.actions) == (TICKS, 2)
        assert robot.missed == 0
        assert [answer.asked for answer in robot.answers] == [robot.number + k * example.EVERY for k in range(each)]
        for answer in robot.answers:
            assert (answer.actions, answer.partial, answer.chunk.shape) == (1, False, (example.HORIZON, 2))
            assert len(answer.committed) == (2 if mode else 0)
            if mode == "replace":
                np.testing.assert_allclose(answer.chunk[:2], answer.committed, rtol=0, atol=1e-6)
        chunk = robot.answers[1]  # the actions done are those of the chunk, until the next one has come
        done = robot.actions[chunk.asked + 1 : chunk.asked + 1 + example.EVERY]
        np.testing.assert_array_equal(done, chunk.chunk[1 : 1 + example.EVERY])
        borders, others = example.jerks(robot)
        assert len(borders) == each - 2
        assert len(others) > 0
    for timeout_s, members in asked:
        assert timeout_s == 2 * example.DT
        assert (members["known"] is None) == (mode is None)
        assert members["on_timeout"] == "partial"


def test_later_actions_count_less(example: ModuleType) -> None:
    said = example.known(np.ones((10, 2)), 3, "guided")
    weights = said["mask"][:, 0]
    assert weights[:3].tolist() == [1, 1, 1]
    assert np.all(np.diff(weights[2:11]) < 0)
    assert not weights[10:].any()
    assert example.known(np.ones((10, 2)), 3, "replace")["mask"].sum() == 3


async def test_a_partial_answer_is_prolonged(example: ModuleType, client: AsyncClient) -> None:
    times = np.linspace(0, 1, 6)
    result = await client.sample("policy", 1, seed=0, solver="euler-5", save_at=times.tolist())
    np.testing.assert_array_equal(example.completed(result), result.samples[0])
    start, way = np.random.default_rng(0).normal(size=(2, example.HORIZON, 2))
    saved = start + times[None, :, None, None] * way
    saved[:, 4:] = np.nan
    partial = replace(result, status="deadline", saved=saved)
    np.testing.assert_allclose(example.completed(partial), start + way, atol=1e-12)
    saved[:, 1:] = np.nan
    assert example.completed(partial) is None
