"""Loaded versions: verified, known to the engine, and freed when the last lease is returned."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from models.architectures import build
from models.checkpoint.bound import add_to_report
from models.checkpoint.card import CheckpointError, read_card
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.registry.entry import ModelEntry
from service.registry.lease import Lease
from service.registry.version import ModelVersion, load_version
from service.routes.models import describe
from service.settings import Settings


@pytest.mark.parametrize("deterministic", [True, False])
def test_engine_decides_what_is_deterministic(repository: Path, engine: Any, deterministic: bool) -> None:
    engine.deterministic = deterministic
    served = load_version(engine, Settings(), "moons", 2, repository / "moons" / "2")
    assert (served.name, served.version, served.deterministic) == ("moons", 2, deterministic)
    assert served.describe()["deterministic"] is deterministic


def test_a_report_that_is_written_later_is_shown(repository: Path, engine: Any) -> None:
    folder = repository / "moons" / "2"
    entry = ModelEntry("moons").with_state(2, model=load_version(engine, Settings(), "moons", 2, folder))
    assert describe(entry)["served"][0]["report"] == describe(entry)["served"][0]["examples"] == []
    add_to_report(folder, read_card(folder), {"report": {"words": ["close to it"]}, "examples": [[1.0, 2.0]]})
    [version] = describe(entry)["served"]
    assert (version["report"], version["examples"]) == (["close to it"], [[1.0, 2.0]])


def leased(model: ModelVersion) -> Lease:
    lease = Lease.of(model)
    assert lease is not None
    return lease


@pytest.fixture
def model(repository: Path, engine: Any) -> ModelVersion:
    return load_version(engine, Settings(), "moons", 1, repository / "moons" / "1")


def test_a_version_is_freed_when_the_last_lease_is_back(model: ModelVersion, engine: Any) -> None:
    leases = [leased(model), leased(model)]
    model.leases.give_back()  # the registry's own
    leases[0].release()
    leases[0].release()  # again
    assert [arena.version for arena in engine.arenas] == [1]
    leases[1].release()
    assert engine.arenas == []
    assert Lease.of(model) is None
    leases[1].release()
    assert engine.arenas == []


def test_no_lease_is_taken_of_a_version_while_it_is_freed(model: ModelVersion, engine: Any) -> None:
    leases, late, last = model.leases, list[Lease | None](), leased(model)

    class Lock:
        """After each use, and before anything else happens, another thread asks for a lease."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if not late:
                late.append(None)
                late[0] = Lease.of(model)

    leases.give_back()  # the registry's own
    leases._lock = cast(Any, Lock())
    last.release()
    assert late == [None]
    assert engine.arenas == []


def test_what_is_damaged_never_reaches_the_engine(repository: Path, engine: Any) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        load_version(engine, Settings(), "broken", 1, repository / "broken" / "1")
    assert engine.loaded == {}


def test_programs_are_served_only_if_a_setting_allows_it(tmp_path: Path, engine: Any) -> None:
    step = {"op": "torch.ops.aten.neg.default", "args": [{"value": "x"}], "out": ["v"]}
    config = {"event_shape": (3,), "dtype": "float32", "tensors": {}, "steps": [step], "output": "v"}
    program = build("program", config)
    folder = save(
        tmp_path, "program", program, Decoder.identity((3,)), dataset={}, training={}, seed=0, dtype=torch.float32
    )
    with pytest.raises(CheckpointError, match="program/1: is a program; set PATHLINE_ALLOW_PROGRAMS=true"):
        load_version(engine, Settings(), "program", 1, folder)
    served = load_version(engine, Settings(allow_programs=True), "program", 1, folder)
    assert served.describe()["card"]["architecture"]["config"]["steps"] == 1  # their number, not all of them
