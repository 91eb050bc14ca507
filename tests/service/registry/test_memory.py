"""Limits on the models in memory: which are unloaded, and which stay."""

from types import SimpleNamespace
from typing import Any

import pytest

from models.checkpoint.card import CheckpointError
from service.errors import Kind, ProblemError
from service.registry.lease import Lease, Memory
from service.registry.version import Leases, ModelVersion

NOTHING: Any = None
SIZES = {"a": 10, "b": 20, "c": 5}


def never(model: ModelVersion) -> None:
    raise AssertionError(f"{model.name} {model.version} gave way")


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
    memory, gone = Memory(limit, 8), list[str]()
    used = {"a": 3.0, "b": 1.0, "c": 2.0}
    loaded = [version(name, size=size, used=used[name]) for name, size in SIZES.items()]
    memory.make_room("d/1", needed, loaded, lambda model: gone.append(model.name))
    assert gone == expected


def test_what_was_never_asked_for_gives_way_first() -> None:
    memory, gone = Memory(40, 8), list[str]()
    loaded = [version(name, size=size, used=float(name == "b")) for name, size in SIZES.items()]
    memory.make_room("d/1", 6, loaded, lambda model: gone.append(model.name))
    assert gone == ["a"]


def test_what_never_fits_is_refused_and_nothing_gives_way() -> None:
    with pytest.raises(CheckpointError, match="d/1: its weights take 41 bytes, over PATHLINE_MAX_MODEL_BYTES=40"):
        Memory(40, 8).make_room("d/1", 41, [version("a", size=40)], never)


def test_old_versions_give_way_unless_they_are_leased_or_answer() -> None:
    memory, gone = Memory(0, 3), list[int]()
    models = [version("net", number, used=float(number)) for number in range(1, 5)]
    for model in models:
        memory.add(model)
    lease = Lease(NOTHING, NOTHING, "net", 1)
    lease.take(models[0])
    memory.make_room_among_old({("net", 4)}, lambda model: gone.append(model.version))
    assert gone == [2]
    leases = [lease, *(Lease(NOTHING, NOTHING, "net", model.version) for model in models[2:])]
    for each, model in zip(leases[1:], models[2:], strict=True):
        each.take(model)
    memory.add(version("net", 5))
    memory.make_room_among_old({("net", 4)}, lambda model: gone.append(model.version))
    assert gone == [2, 5]
    memory.add(version("other"))
    with pytest.raises(ProblemError, match="3 older versions are in use, the limit is 3") as caught:
        memory.make_room_among_old({("other", 1)}, never)
    assert caught.value.kind is Kind.OVERLOADED
    for each in leases:
        each.release()
