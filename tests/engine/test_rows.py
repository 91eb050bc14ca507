"""Rows of jobs: each distinct condition is stored once, and adding a job does not move the rows of others."""

import numpy as np
import pytest
import torch

from engine import conditions as module
from engine.conditions import Conditions, RowStore
from engine.job import Job
from models.condition_values import Distinct
from models.conditions import NamedCondition, NamedConditions
from models.forms.rows import StoredRows, field_rows
from solvers import resolve

PLAN = resolve(solver="euler", steps=2)
TEXT = NamedConditions({"text": NamedCondition(shape=(1000,), null="zeros")})


def job(samples: int, given: Distinct) -> Job:
    return Job("m", 1, PLAN, samples, conditions={"text": given})


def test_one_condition_of_many_samples_is_one_row() -> None:
    conditions = Conditions(TEXT, torch.float32, "cpu")
    row = torch.randn(1, 1000)
    conditions.add(7, job(10_000, Distinct(row)))
    [store] = conditions.rows.stores.values()
    assert store.held == 1
    [chosen] = conditions.of(np.full(3, 7), np.array([0, 5, 9_999]), torch.zeros(3)).conditions
    assert torch.equal(chosen.rows(), row.expand(3, -1))
    conditions.remove(7)
    assert store.held == 0


def test_equal_conditions_of_a_request_are_held_once() -> None:
    rows = torch.randn(2, 1000)
    given = Distinct.from_rows(rows[[0, 1, 0, 0, 1]])
    assert len(given.rows) == 2
    assert torch.equal(given.expanded(5), rows[[0, 1, 0, 0, 1]])


def test_a_job_that_comes_moves_nothing_of_those_that_run() -> None:
    store = RowStore((300_000,), torch.float32, "cpu")
    places = [store.add(torch.full((1, 300_000), float(k))) for k in range(60)]
    before = [block.data_ptr() for block in store._blocks]
    store.add(torch.zeros(1, 300_000))
    assert [block.data_ptr() for block in store._blocks][: len(before)] == before
    for k in (0, 31, 59):
        assert store.take(places[k])[0, 0] == k
    for each in places:
        store.remove(each)
    assert store.held == 1


def test_copies_of_large_rows_reuse_their_memory() -> None:
    store = RowStore((300_000,), torch.float32, "cpu")
    places = np.concatenate([store.add(torch.full((1, 300_000), float(k))) for k in range(3)])
    found = store.take(places[[0, 1, 1, 2]])
    assert found[:, 7].tolist() == [0, 1, 1, 2]
    at = found.data_ptr()
    for chosen in ([1, 1, 1], [2, 0, 1, 0]):
        again = store.take(places[chosen])
        assert (again.data_ptr(), again[:, 299_999].tolist()) == (at, chosen)
    for place in places:
        store.remove(place[None])
    assert store._copies is None
    small = RowStore((2,), torch.float32, "cpu")
    place = small.add(torch.ones(1, 2))
    first, second = small.take(place), small.take(place)
    assert first.data_ptr() != second.data_ptr()


def test_a_velocity_that_is_its_condition_keeps_its_values() -> None:
    width, rows = 3000, 300
    store = RowStore((width,), torch.float32, "cpu")
    told = torch.randn(rows, width)
    places = store.add(told)
    x, t = torch.zeros(rows, width), torch.zeros(rows)
    takes = NamedConditions({"condition": NamedCondition.vector(width=width)})
    field = field_rows(lambda x, t, condition=None: condition, (width,), torch.float32, max_rows=128, condition=takes)
    assert torch.equal(field(x, t, StoredRows(store.take, places)), told)


def test_jobs_come_and_go_in_any_order() -> None:
    generator = np.random.default_rng(0)
    conditions = Conditions(NamedConditions({"condition": NamedCondition.vector(width=2)}), torch.float32, "cpu")
    alive: dict[int, torch.Tensor] = {}
    for number in generator.permutation(300).tolist():
        n = int(generator.integers(1, 200))
        rows = torch.full((n, 2), float(number)) + torch.arange(n)[:, None] / 1000
        given = {"condition": Distinct.from_rows(rows)}
        conditions.add(number, Job("m", 1, PLAN, n, conditions=given))
        alive[number] = rows
        if len(alive) > 20:
            gone = int(generator.choice(list(alive)))
            conditions.remove(gone)
            del alive[gone]
    owner = np.array([each for each in alive for _ in range(2)])
    index = np.array([k for rows in alive.values() for k in (0, len(rows) - 1)])
    [chosen] = conditions.of(owner, index, torch.zeros(len(owner))).conditions
    wanted = torch.stack([rows[k] for rows in alive.values() for k in (0, len(rows) - 1)])
    assert torch.equal(chosen.rows(), wanted)


def test_large_rows_are_gathered_once_while_the_places_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore((1 << 18,), torch.float32, "cpu")
    rows = torch.randn(3, 1 << 18)
    places = store.add(rows)
    gathered: list[int] = []
    gather = store._gather
    monkeypatch.setattr(store, "_gather", lambda places: gathered.append(len(places)) or gather(places))
    for _ in range(3):
        assert torch.equal(store.take(places[[2, 0, 2]]), rows[[2, 0, 2]])
    assert gathered == [3]
    assert torch.equal(store.take(places[[1, 1]]), rows[[1, 1]])
    more = store.add(rows[:1] + 1)
    assert torch.equal(store.take(np.concatenate((places[:1], more))), torch.cat((rows[:1], rows[:1] + 1)))
    assert gathered == [3, 2, 2]
    alone = store.take(places[1:2])
    assert torch.equal(alone, rows[1:2])
    assert any(alone.data_ptr() == block[row].data_ptr() for block in store._blocks for row in range(len(block)))


PAIR = NamedConditions({name: NamedCondition(shape=(3,), null="zeros") for name in ("a", "b")})


def pair(samples: int) -> Job:
    given = {name: Distinct.from_rows(torch.randn(samples, 3)) for name in ("a", "b")}
    return Job("m", 1, PLAN, samples, conditions=given)


@pytest.mark.parametrize("place", ["second store", "table"])
def test_a_job_for_which_memory_does_not_suffice_leaves_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = Conditions(PAIR, torch.float32, "cpu")
    rows = conditions.rows
    stores = list(rows.stores.values())

    def full(*_: object) -> None:
        raise MemoryError

    for alone in (True, False):  # without other jobs, and with one
        if not alone:
            conditions.add(0, pair(2))
        before = [store.held for store in stores], rows.owners.tolist(), rows._space.size, list(rows._space.free)
        with monkeypatch.context() as patch:
            patch.setattr(*(module, "grown") if place == "table" else (stores[1], "add"), full)
            with pytest.raises(MemoryError):
                conditions.add(1, pair(100_000))
        conditions.remove(1)
        after = [store.held for store in stores], rows.owners.tolist(), rows._space.size, list(rows._space.free)
        assert after == before
    conditions.add(2, pair(2))
    assert len(rows._table) == 64


def test_rows_that_cannot_be_copied_take_no_places() -> None:
    store = RowStore((2,), torch.float32, "cpu")
    store.add(torch.zeros(2, 2))
    free = [list(places) for places in store._free]
    with pytest.raises(NotImplementedError):  # as if there were no memory for them
        store.add(torch.zeros(3, 2, device="meta"))
    assert store._free == free
    assert store.held == 2


def test_the_table_of_places_shrinks_after_a_peak() -> None:
    conditions = Conditions(PAIR, torch.float32, "cpu")
    conditions.add(0, pair(3))
    conditions.add(1, pair(50_000))
    assert len(conditions.rows._table) >= 50_000
    conditions.add(2, pair(3))
    conditions.remove(1)
    conditions.remove(2)
    assert len(conditions.rows._table) <= 64  # while a job stays
    [a, b] = conditions.of(np.zeros(3, dtype=np.int64), np.arange(3), torch.zeros(3)).conditions
    assert a.rows().shape == b.rows().shape == (3, 3)
    conditions.remove(0)
    assert conditions.rows._table.nbytes == 0
    assert conditions.rows._table.base is None
