"""Admission is all or nothing: if memory runs out at any point, the lanes are unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import bank, resolve
from solvers.lanes import Admission, Lanes
from tests.solvers.support import Ended, gaussian, run, same_bits

SAVE = np.array([0.0, 0.5, 1.0])
KNOWN = torch.tensor([[torch.nan, 0.5]])


def admissions() -> list[Admission]:
    """Return two plans, and two methods under error control; two save their start, and two have known values."""
    x0 = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    solves = [resolve(), resolve(solver="rk4", steps=5), resolve(solver="tsit5"), resolve(solver="euler", steps=8)]
    return [
        Admission(solve, x0[k : k + 3], k + 1, k, SAVE if k > 1 else None, known=KNOWN if k % 2 else None)
        for k, solve in enumerate(solves)
    ]


def resident() -> Admission:
    return Admission(resolve(solver="bosh3"), torch.ones(2, 2), owner=9, save_at=SAVE, known=KNOWN)


Place = Callable[[Lanes], tuple[Any, str]]
PLACES: dict[str, Place] = {
    "rows": lambda lanes: (lanes.bank, "_load"),
    "rows and times": lambda lanes: (lanes.bank, "hold"),
    "log": lambda lanes: (lanes.log, "open"),
    "pins": lambda lanes: (lanes.states, "pin"),
    "room for pins": lambda lanes: (lanes.states, "_set_pins"),
    "saved": lambda lanes: (lanes.states, "start_of"),
    "room": lambda lanes: (lanes.states, "_grow"),
    "states": lambda lanes: (lanes.states, "_fitting"),
}


def fail(place: tuple[Any, str], after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a method run out of memory in one call."""
    owner, name = place
    real, calls = getattr(owner, name), 0

    def short(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(owner, name, short)


def held(lanes: Lanes) -> tuple[Any, ...]:
    """Return everything that would differ if a failed admission left anything behind."""
    bank, log = lanes.bank, lanes.log
    users = dict(bank._users)
    spaces = [sum(length for _, length in space.free) - space.size for space in (bank._row_space, bank._time_space)]
    counts = len(lanes), len(lanes.states.x), len(lanes.states.k), len(lanes.saved), lanes.saving, len(lanes._tickets)
    pinned = len(lanes.states.pins) - len(lanes.states._free_pins)
    return users, spaces, counts, len(log._free) - len(log.arrays[1]), pinned, lanes.records["owner"].tolist()


def same(found: dict[tuple[int, int], Ended], expected: dict[tuple[int, int], Ended]) -> bool:
    return found.keys() == expected.keys() and all(
        same_bits(found[key].x, end.x) and found[key].nfe == end.nfe for key, end in expected.items()
    )


def saves(lanes: Lanes) -> dict[tuple[int, int, int], list[float]]:
    return {
        (int(owner), int(index), int(place)): x.tolist()
        for part in lanes.take_saved()
        for owner, index, place, x in zip(part.owner, part.index, part.place, part.x, strict=True)
    }


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_an_admission_that_fails_leaves_nothing_and_can_be_tried_again(
    place: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in (1, 2, 3, 4):
        lanes, plain = Lanes((2,), compiled=compiled), Lanes((2,), compiled=compiled)
        for each in (lanes, plain):
            each.admit([resident()])
            for _ in range(3):
                each.absorb(gaussian(*each.query()))
        before, points = held(lanes), lanes.query()
        raised = False
        with monkeypatch.context() as patch:
            fail(PLACES[place](lanes), after, patch)
            try:
                lanes.admit(admissions())
            except MemoryError:
                raised = True
        if raised:
            assert held(lanes) == before
            assert all(torch.equal(a, b) for a, b in zip(lanes.query(), points, strict=True))
            for admission in admissions():  # one by one, as the engine does then
                lanes.admit([admission])
        plain.admit(admissions())
        assert same(run(lanes, gaussian, []), run(plain, gaussian, []))
        assert saves(lanes) == saves(plain)
        assert held(lanes)[2:] == held(plain)[2:]
        assert not lanes.bank._ranges


def test_every_place_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES.values():
        lanes = Lanes((2,))
        fail(place(lanes), 1, monkeypatch)
        with pytest.raises(MemoryError):
            lanes.admit(admissions())
        assert held(lanes) == held(Lanes((2,)))


@pytest.mark.parametrize("compiled", [True, False])
def test_lanes_that_run_are_not_left_in_the_old_room(compiled: bool) -> None:
    """Room for more lanes was made before memory ran out for the new states: running lanes must have moved there."""
    lanes = Lanes((1,), torch.float64, compiled=compiled)
    solve = resolve(solver="euler", steps=4, dtype=torch.float64)
    lanes.admit([Admission(solve, torch.ones(2, 1, dtype=torch.float64))])
    lost = Admission(solve, torch.ones(1, 1).expand(500, 1).to("meta"), owner=1)
    with pytest.raises(NotImplementedError):
        lanes.admit([lost])

    def field(x: Tensor, t: Tensor) -> Tensor:
        return torch.ones_like(x)

    lanes.absorb(field(*lanes.query()))
    lanes.admit([Admission(solve, torch.zeros(300, 1, dtype=torch.float64), owner=2)])
    found = run(lanes, field, [])
    assert [found[0, k].x.item() for k in range(2)] == [2.0, 2.0]
    assert {found[2, k].x.item() for k in range(300)} == {1.0}


def test_a_bank_without_room_keeps_its_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes((1,))
    lanes.admit([Admission(resolve(solver="euler", steps=3), torch.ones(1, 1))])
    grown, left = bank.grown, 0

    def full(array: Any, *shape: int) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise MemoryError
        return grown(array, *shape)

    monkeypatch.setattr(bank, "grown", full)
    plan = resolve(solver="ab4", steps=100, start="rk", grid={"name": "power", "exponent": 2.0})
    assert plan.times is not None
    for allowed, item in ((1, plan.rows), (2, plan.rows), (1, plan.times)):  # weights, rows, times
        left, before = allowed, held(lanes)
        sizes = lanes.bank._row_space.size, lanes.bank._time_space.size
        with pytest.raises(MemoryError):
            lanes.bank.hold(item)
        assert held(lanes) == before
        assert (lanes.bank._row_space.size, lanes.bank._time_space.size) == sizes  # what is small still fits
    monkeypatch.undo()
    ended = run(lanes, lambda x, t: x, [Admission(resolve(solver="ab4", steps=100), torch.ones(1, 1), owner=1)])
    assert ended[1, 0].x.item() == pytest.approx(2.71828, abs=1e-3)
    assert [sum(length for _, length in space.free) for space in (lanes.bank._row_space, lanes.bank._time_space)] == [
        lanes.bank._row_space.size,
        lanes.bank._time_space.size,
    ]
