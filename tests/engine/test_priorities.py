"""Interactive and bulk jobs in a running engine."""

from collections.abc import Callable

import torch

from engine.engine import Engine
from engine.job import SAMPLE, Job, JobResult, Priority

from .conftest import Field, Observed, job
from .test_engine import same

LONG = {"num_samples": 400, "solver": "euler", "steps": 300, "priority": Priority.BULK}


def _solved(engine: Engine, *jobs: Job) -> tuple[list[JobResult], list[int]]:
    """Return the results, and the indices of the jobs in the order in which they ended."""
    ended: list[int] = []

    def note(place: int) -> Callable[[object], None]:
        return lambda _: ended.append(place)

    futures = [engine.submit(each) for each in jobs]
    for place, future in enumerate(futures):
        future.add_done_callback(note(place))
    return [future.result(60) for future in futures], ended


def test_interactive_jobs_overtake_bulk_jobs(engine: Engine) -> None:
    quick = [job(20, solver="euler", steps=100, seed=k) for k in range(3)]
    results, ended = _solved(engine, job(**LONG), job(**LONG), *quick)
    assert set(ended[:3]) == {2, 3, 4}
    assert all(set(result.status) == {"success"} for result in results)


def test_bulk_jobs_go_on_beside_interactive_ones(engine: Engine, observed: Observed) -> None:
    slow = job(20, solver="euler", steps=3000)
    bulk = job(20, solver="euler", steps=20, priority=Priority.BULK)
    _, ended = _solved(engine, slow, bulk)
    assert ended == [1, 0]
    assert {requests for _, _, requests, _ in observed.batches} == {1, 2}  # they also shared calls


def test_a_priority_changes_no_bit(engine: Engine) -> None:
    for steps in (None, 7):
        kinds = [job(50, seed=4, trace="full", priority=each, solver="dopri5", steps=steps) for each in Priority]
        (interactive, bulk, together, again), _ = _solved(engine, *kinds, *kinds)
        assert same(interactive, bulk)
        assert same(interactive, together)
        assert same(bulk, again)


def test_an_error_beside_the_network_costs_its_own_priority_only(engine: Engine, field: Field) -> None:
    arena = engine.prepared("net", 1, SAMPLE)
    assert arena is not None
    broken = arena.lanes[True]

    def fail(v: torch.Tensor) -> None:
        raise MemoryError("no room for lanes")

    broken.absorb = fail
    interactive, bulk = (engine.submit(job(5, solver="euler", steps=500, priority=each)) for each in Priority)
    assert "no room for lanes" in str(bulk.exception(30))
    # Both may have been in the call that failed; later requests are served.
    assert interactive.exception(30) is None or "no room for lanes" in str(interactive.exception(30))
    assert set(engine.submit(job(5, priority=Priority.BULK)).result(30).status) == {"success"}
