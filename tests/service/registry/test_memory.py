"""Who gives way."""

from service.registry.memory import give_way

SIZES = {"a": 10, "b": 20, "c": 5}
USED = {"a": 3.0, "b": 1.0, "c": 2.0}


def test_as_few_as_make_room_the_oldest_first() -> None:
    assert give_way(SIZES, USED, 5, 40) == []
    assert give_way(SIZES, USED, 6, 40) == ["b"]
    assert give_way(SIZES, USED, 26, 40) == ["b", "c"]
    assert give_way(SIZES, USED, 40, 40) == ["b", "c", "a"]


def test_no_limit_and_never_used() -> None:
    assert give_way(SIZES, USED, 1000, 0) == []
    assert give_way(SIZES, {"b": 1.0}, 6, 40) == ["a"]
