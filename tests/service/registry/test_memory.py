"""Limits on the models in memory: which are unloaded, and which stay."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.checkpoint.card import CheckpointError
from service.errors import Kind, ProblemError
from service.registry.lease import Lease
from service.registry.registry import Registry
from service.registry.version import Leases, ModelVersion
from tests.service.registry.asking import registry_of

SIZES = {"a": 10, "b": 20, "c": 5}


def version(name: str, number: int = 1, size: int = 1, used: float = 0.0) -> ModelVersion:
    model: Any = SimpleNamespace(
        name=name, version=number, bytes=size, path="eager", leases=Leases(lambda: None), describe=dict
    )
    model.leases.used = used
    return model


def remembered(root: Path, limit: int, max_old: int, *models: ModelVersion) -> tuple[Registry, list[ModelVersion]]:
    """Return a registry with these versions in memory, and the list of those that leave it."""
    gone = list[ModelVersion]()
    registry = registry_of(root, None, max_model_bytes=limit, max_old_versions=max_old)
    for model in models:
        add(registry, gone, model)
    return registry, gone


def add(registry: Registry, gone: list[ModelVersion], model: ModelVersion) -> None:
    model.leases._free = lambda: gone.append(model)
    registry._put(registry._entry(model.name).with_state(model.version, model=model))


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
    tmp_path: Path, needed: int, limit: int, expected: list[str]
) -> None:
    used = {"a": 3.0, "b": 1.0, "c": 2.0}
    models = [version(name, size=size, used=used[name]) for name, size in SIZES.items()]
    registry, gone = remembered(tmp_path, limit, 8, *models)
    registry._make_room("d/1", needed)
    assert [model.name for model in gone] == expected


def test_what_was_never_asked_for_gives_way_first(tmp_path: Path) -> None:
    models = [version(name, size=size, used=float(name == "b")) for name, size in SIZES.items()]
    registry, gone = remembered(tmp_path, 40, 8, *models)
    registry._make_room("d/1", 6)
    assert [model.name for model in gone] == ["a"]


def test_what_never_fits_is_refused_and_nothing_gives_way(tmp_path: Path) -> None:
    registry, gone = remembered(tmp_path, 40, 8, version("a", size=40))
    with pytest.raises(CheckpointError, match="d/1: its weights take 41 bytes, over PATHLINE_MAX_MODEL_BYTES=40"):
        registry._make_room("d/1", 41)
    assert gone == []


def leased(*models: ModelVersion) -> list[Lease]:
    return [lease for lease in map(Lease.of, models) if lease is not None]


def test_old_versions_give_way_unless_they_are_leased_or_answer(tmp_path: Path) -> None:
    models = [version("net", number, used=float(number)) for number in (1, 2, 3, 9)]
    registry, gone = remembered(tmp_path, 0, 3, *models)
    leases = leased(models[0])
    registry._make_room_among_old()
    assert [model.version for model in gone] == [2]
    leases += leased(*models[2:])
    add(registry, gone, version("net", 5))
    registry._make_room_among_old()
    assert [model.version for model in gone] == [2, 5]
    add(registry, gone, version("net", 10))  # it answers from now on
    with pytest.raises(ProblemError, match="3 older versions are in use, the limit is 3") as caught:
        registry._make_room_among_old()
    assert caught.value.kind is Kind.OVERLOADED
    assert len(gone) == 2
    registry._forget(models[0])  # its lease keeps it in memory
    with pytest.raises(ProblemError, match="3 older versions are in use"):
        registry._make_room_among_old()
    for lease in leases:
        lease.release()
    registry._make_room_among_old()
    assert [model.version for model in gone] == [2, 5, 1]


def test_an_old_version_that_is_leased_as_it_gives_way_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [version("net", number, used=float(number)) for number in (1, 2, 9)]
    registry, gone = remembered(tmp_path, 0, 2, *models)
    forget, leases = registry._forget, list[Lease]()

    def leased_meanwhile(model: ModelVersion) -> None:
        if not leases:
            leases.extend(leased(model))
        forget(model)

    monkeypatch.setattr(registry, "_forget", leased_meanwhile)
    registry._make_room_among_old()
    assert [model.version for model in gone] == [2]
    assert leases[0].model is models[0]
    leases[0].release()
    assert [model.version for model in gone] == [2, 1]
