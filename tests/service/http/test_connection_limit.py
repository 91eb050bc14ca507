"""The connection limit: the longest idle gives way, and a reserve stays for health checks."""

import pytest

from service.http.connection_limit import RESERVED, ConnectionLimit


class _Holder:
    def __init__(self) -> None:
        self.gave_way = 0

    def give_way(self) -> None:
        self.gave_way += 1


def _taken(limit: ConnectionLimit, count: int) -> list[_Holder]:
    holders = [_Holder() for _ in range(count)]
    assert [limit.take(holder) for holder in holders] == [False] * count
    return holders


def test_the_longest_idle_gives_way() -> None:
    limit = ConnectionLimit(3)
    first, second, third = _taken(limit, 3)
    limit.mark_busy(first)
    limit.mark_idle(first)  # now the second is idle longest
    assert limit.take(_Holder()) is False
    assert [holder.gave_way for holder in (first, second, third)] == [0, 1, 0]


def test_busy_connections_stay_and_a_few_are_reserved() -> None:
    limit = ConnectionLimit(2)
    busy = _taken(limit, 2)
    for holder in busy:
        limit.mark_busy(holder)
    reserved = [_Holder() for _ in range(RESERVED)]
    assert [limit.take(holder) for holder in reserved] == [True] * RESERVED
    assert limit.take(_Holder()) is True
    assert [holder.gave_way for holder in busy + reserved] == [0, 0, 1] + [0] * (RESERVED - 1)
    for holder in reserved[1:]:
        limit.mark_busy(holder)
    limit.take(last := _Holder())
    limit.mark_busy(last)
    assert limit.take(_Holder()) is None


def test_a_slot_is_released_once() -> None:
    limit = ConnectionLimit(1)
    (holder,) = _taken(limit, 1)
    limit.release(holder)
    limit.release(holder)
    limit.mark_idle(holder)  # it has no slot, so it cannot be idle
    _taken(limit, 1)
    assert holder.gave_way == 0


@pytest.mark.parametrize("count", [1, 50])
def test_never_more_connections_than_the_limit(count: int) -> None:
    limit = ConnectionLimit(5)
    holders = _taken(limit, 5 + count)
    assert sum(holder.gave_way for holder in holders) == count
