"""Limits on the models in memory: which are unloaded, and which stay."""

from types import SimpleNamespace
from typing import Any

import pytest

from models.checkpoint.card import CheckpointError
from service.errors import Kind, ProblemError
from service.registry.lease import Lease, Memory
from service.registry.version import Leases, ModelVersion

SIZES = {"a": 10, "b": 20, "c": 5}


def remembered(limit: int, max_old: int, *models: ModelVersion) -> tuple[Memory, list[ModelVersion]]:
    """Return a memory of these versions, and the list of those that give way."""
    gone = list[ModelVersion]()
    memory = Memory(limit, max_old, gone.append)
    for model in models:
        memory.add(model)
    return memory, gone


def version(name: str, number: int = 1, size: int = 1, used: float = 0.0) -> ModelVersion:
    model: Any = SimpleNamespace(
        name=name, version=number, bytes=size, leases=Leases(lambda: None), summary=dict, describe=dict
    )
    model.leases.used = used
    return model


@pytest.mark.parametrize(
    ("needed", "limit", "expected"),
    [
        (5, 40, []),
        (6, 40, ["b"]),
        (26, 40, ["b", "c"]),
        (40, 40, ["b", "c", "a"]),
        (1000, 0, []),
    ],
)
def test_as_few_as_make_room_give_way_the_least_recently_used_first(
    needed: int, limit: int, expected: list[str]
) -> None:
    used = {"a": 3.0, "b": 1.0, "c": 2.0}
    memory, gone = remembered(limit, 8, *(version(name, size=size, used=used[name]) for name, size in SIZES.items()))
    memory.make_room("d/1", needed)
    assert [model.name for model in gone] == expected


def test_what_was_never_asked_for_gives_way_first() -> None:
    memory, gone = remembered(
        40, 8, *(version(name, size=size, used=float(name == "b")) for name, size in SIZES.items())
    )
    memory.make_room("d/1", 6)
    assert [model.name for model in gone] == ["a"]


def test_what_never_fits_is_refused_and_nothing_gives_way() -> None:
    memory, gone = remembered(40, 8, version("a", size=40))
    with pytest.raises(CheckpointError, match="d/1: its weights take 41 bytes, over PATHLINE_MAX_MODEL_BYTES=40"):
        memory.make_room("d/1", 41)
    assert gone == []


def test_old_versions_give_way_unless_they_are_leased_or_answer() -> None:
    models = [version("net", number, used=float(number)) for number in range(1, 5)]
    memory, gone = remembered(0, 3, *models)
    leases = [Lease.of(models[0])]
    memory.make_room_among_old({("net", 4)})
    assert [model.version for model in gone] == [2]
    leases += map(Lease.of, models[2:])
    memory.add(version("net", 5))
    memory.make_room_among_old({("net", 4)})
    assert [model.version for model in gone] == [2, 5]
    memory.add(version("other"))
    with pytest.raises(ProblemError, match="3 older versions are in use, the limit is 3") as caught:
        memory.make_room_among_old({("other", 1)})
    assert caught.value.kind is Kind.OVERLOADED
    assert len(gone) == 2
    for lease in leases:
        assert lease is not None
        lease.release()
