"""What requests are told of the models, and what is told of changes."""

import logging
from pathlib import Path
from typing import Any

import pytest

from service.errors import Kind, ProblemError
from service.registry.loading import load_version
from service.registry.served import Served
from service.registry.shelf import Changes, Shelf
from service.registry.stock import Stock


@pytest.fixture
def served(repository: Path, engine: Any) -> Served:
    return load_version(engine, "moons", 2, repository / "moons" / "2", allow_programs=False)


def filled(shelf: Shelf, served: Served) -> Changes:
    """With two versions on disk, the second of which is in memory and answers."""
    changes = Changes()
    shelf._put("moons", Stock("moons", versions=(1, 2), current=2), changes)
    shelf._add(served, (), changes)
    return changes


def test_an_empty_shelf_knows_no_name() -> None:
    shelf = Shelf()
    assert (shelf.names(), shelf.served(), shelf.current(), shelf.broken()) == ([], [], [], {})
    for ask in (shelf.get, shelf.describe):
        with pytest.raises(ProblemError, match=r"model 'moons' is unknown; available: $") as caught:
            ask("moons")
        assert caught.value.kind is Kind.UNKNOWN_MODEL
    assert shelf.summary("moons")["status"] == "unavailable"


def test_what_is_in_memory_is_given_and_what_could_be_loaded_is_none(served: Served) -> None:
    shelf = Shelf()
    assert filled(shelf, served).loaded == [("moons", 2)]
    assert shelf.get("moons") is shelf.get("moons", 2) is served
    assert shelf.get("moons", 1) is None
    assert shelf.current() == [("moons", 2)]
    with pytest.raises(ProblemError, match="has no version 3; available: 1, 2") as caught:
        shelf.get("moons", 3)
    assert caught.value.kind is Kind.UNKNOWN_VERSION


def test_each_change_is_told(served: Served) -> None:
    told: list[tuple[str, int, bool]] = []
    shelf = Shelf(lambda *change: told.append(change))
    filled(shelf, served)
    changes = Changes()
    shelf._put("moons", shelf._stock["moons"].unloaded(2), changes)
    assert changes.unloaded == [("moons", 2)]
    assert told == [("moons", 2, True), ("moons", 2, False)]
    assert shelf.served() == []
    assert shelf.describe("moons")["serving"] == 2
    shelf._put("moons", Stock("moons"), changes)  # nothing on disk and nothing to say of it
    assert shelf.names() == []


def test_a_refusal_keeps_its_reason_and_is_said_once(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    filled(shelf, served)
    for _ in range(2):
        shelf._refuse("moons", 1, "moons/1: is damaged", (), Changes())
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.ERROR
    assert shelf.broken() == {"moons": {1: "moons/1: is damaged"}}
    with pytest.raises(ProblemError, match="version 1 cannot be served: moons/1: is damaged"):
        shelf.get("moons", 1)
    assert shelf.get("moons") is served


def test_a_reader_keeps_the_table_that_it_began_with(served: Served) -> None:
    shelf = Shelf()
    before = shelf._stock
    filled(shelf, served)
    assert before == {}
    assert list(shelf._stock) == ["moons"]
