"""Bursts of requests proceed a few at a time and in order; health checks are not held up."""

import asyncio
from itertools import pairwise

import httpx
import pytest

from engine.job import Overloaded
from service.http.middleware import BURST, BurstLimiter

from ..conftest import Running

pytestmark = pytest.mark.anyio


async def enter_turn(limiter: BurstLimiter) -> None:
    if (turn := limiter.place()) is not None:
        await turn


async def test_so_many_in_each_turn_and_in_order() -> None:
    limiter = BurstLimiter(3)
    entered: list[int] = []
    seen = [0]  # number of requests that have entered, as seen by a task that runs in every turn

    async def enter(number: int) -> None:
        await enter_turn(limiter)
        entered.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(20)]
    while len(entered) < 20:
        await asyncio.sleep(0)
        seen.append(len(entered))
    await asyncio.gather(*tasks)
    assert entered == list(range(20))
    assert max(after - before for before, after in pairwise(seen)) <= 3
    assert len(seen) >= 7


async def test_few_never_wait() -> None:
    limiter = BurstLimiter(3)
    for _ in range(5):
        for _ in range(3):
            assert limiter.place() is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_whoever_gives_up_takes_nobodys_place() -> None:
    limiter = BurstLimiter(1)
    tasks = [asyncio.create_task(enter_turn(limiter)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks[1:4]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [False, True, True, True, False, False]
    await asyncio.wait_for(enter_turn(limiter), 60)


def test_it_serves_a_loop_after_another_was_left() -> None:
    limiter = BurstLimiter(1)

    async def leave() -> None:
        waiting = [asyncio.ensure_future(enter_turn(limiter)) for _ in range(4)]
        await waiting[0]

    async def crowd() -> None:
        await asyncio.wait_for(asyncio.gather(*(enter_turn(limiter) for _ in range(4))), 60)

    for _ in range(2):
        asyncio.run(leave())  # three of the four never enter
        asyncio.run(crowd())


async def _most_in_a_turn(asking: list[asyncio.Task[httpx.Response]]) -> int:
    """Return the most requests that end in one turn of the loop, beside a task that runs in every turn."""
    seen = [0]
    while seen[-1] < len(asking):
        await asyncio.sleep(0)
        seen.append(sum(each.done() for each in asking))
    return max(after - before for before, after in pairwise(seen))


async def test_a_crowd_is_refused_a_few_at_a_time_and_whoever_looks_comes_between(running: Running) -> None:
    running.engine.refuse = Overloaded("the queue is full", 3.0)
    asking = [asyncio.create_task(running.post()) for _ in range(20 * BURST)]
    looking = asyncio.create_task(running.http.get("/livez"))
    looking.add_done_callback(lambda _: ended.append(sum(each.done() for each in asking)))
    ended: list[int] = []
    assert await _most_in_a_turn(asking) <= BURST
    assert (await looking).status_code == 200
    assert ended[0] < len(asking) // 2
    assert {each.result().status_code for each in asking} == {429}


async def test_answers_that_are_due_in_one_moment_come_a_few_at_a_time(running: Running) -> None:
    running.engine.hold = True
    asking = [asyncio.create_task(running.post(num_samples=3)) for _ in range(20 * BURST)]
    while len(running.engine.submitted) < len(asking):
        await asyncio.sleep(0.001)
    for future, job in zip(running.engine.submitted, running.engine.jobs, strict=True):
        future.set_result(running.engine._result(job))
    assert await _most_in_a_turn(asking) <= BURST
    assert {each.result().status_code for each in asking} == {200}
