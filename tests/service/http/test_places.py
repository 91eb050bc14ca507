"""Who holds a place for a connection, and who gives way."""

import pytest

from service.http.places import KEPT, Places


class _Holder:
    def __init__(self) -> None:
        self.gave_way = 0

    def give_way(self) -> None:
        self.gave_way += 1


def _taken(places: Places, count: int) -> list[_Holder]:
    holders = [_Holder() for _ in range(count)]
    assert [places.take(holder) for holder in holders] == [False] * count
    return holders


def test_the_longest_idle_gives_way() -> None:
    places = Places(3)
    first, second, third = _taken(places, 3)
    places.work(first)
    places.rest(first)  # now the second is idle longest
    assert places.take(_Holder()) is False
    assert [holder.gave_way for holder in (first, second, third)] == [0, 1, 0]


def test_who_is_busy_keeps_its_place_and_a_few_are_kept_beyond() -> None:
    places = Places(2)
    busy = _taken(places, 2)
    for holder in busy:
        places.work(holder)
    kept = [_Holder() for _ in range(KEPT)]
    assert [places.take(holder) for holder in kept] == [True] * KEPT
    assert places.take(_Holder()) is True
    assert [holder.gave_way for holder in busy + kept] == [0, 0, 1] + [0] * (KEPT - 1)
    for holder in kept[1:]:
        places.work(holder)
    places.take(last := _Holder())
    places.work(last)
    assert places.take(_Holder()) is None


def test_a_place_is_given_back_once() -> None:
    places = Places(1)
    (holder,) = _taken(places, 1)
    places.leave(holder)
    places.leave(holder)
    places.rest(holder)  # it holds none, so it is not idle on one
    _taken(places, 1)
    assert holder.gave_way == 0


@pytest.mark.parametrize("count", [1, 50])
def test_any_number_of_newcomers_leaves_no_more_than_the_limit(count: int) -> None:
    places = Places(5)
    holders = _taken(places, 5 + count)
    assert sum(holder.gave_way for holder in holders) == count
