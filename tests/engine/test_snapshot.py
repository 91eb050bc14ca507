"""The workload falls from all requested work to zero as calls are made, on a simulated clock."""

import pytest

from engine.job import Priority
from models.checkpoint.loading import Checkpoint

from .simulation import Service


def test_work_is_rows_times_calls_that_are_left(net: Checkpoint) -> None:
    service = Service(net)
    key = ("net", 1, "sample")
    idle = service.engine.workload()
    assert (idle.jobs, idle.work, idle.seconds) == (0, 0.0, 0.0)
    assert [rows for rows, _ in idle.arenas[key].tick_s] == sorted(rows for rows, _ in idle.arenas[key].tick_s)
    service.ask(60.0, num_samples=10, solver="rk4", steps=5)
    service.ask(60.0, num_samples=3, solver="euler", steps=7, priority=Priority.BULK)
    found = service.engine.workload()
    assert found.jobs == 2
    assert (found.arenas[key].interactive, found.arenas[key].bulk) == (10 * 20, 3 * 7)
    assert found.work == 221
    begin = service.world.now
    service.run(lambda: service.world.now > begin + 0.022)  # snapshots are at most 20 ms old
    under_way = service.engine.workload()
    assert 0 < under_way.work < 221
    service.run()
    assert found.seconds == pytest.approx(service.world.now - begin, rel=0.5)
    assert service.engine.workload().work == 0
