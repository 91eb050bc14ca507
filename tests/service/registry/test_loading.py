"""What is loaded is verified, known to the engine, and let go by it when nobody holds it any more."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.architectures import build
from models.checkpoint.loading import CheckpointError, save
from models.decoder import Decoder
from service.registry.loading import load_version


@pytest.mark.parametrize("deterministic", [True, False])
def test_engine_decides_what_is_deterministic(repository: Path, engine: Any, deterministic: bool) -> None:
    engine.deterministic = deterministic
    served = load_version(engine, "moons", 2, repository / "moons" / "2", allow_programs=False)
    assert (served.name, served.version, served.deterministic) == ("moons", 2, deterministic)
    assert served.summary()["deterministic"] is deterministic


def test_the_engine_lets_it_go_when_the_last_holder_does(repository: Path, engine: Any) -> None:
    served = load_version(engine, "moons", 1, repository / "moons" / "1", allow_programs=False)
    answering = served
    del served
    assert [arena.version for arena in engine.arenas] == [1]
    del answering
    assert engine.arenas == []


def test_what_is_damaged_never_reaches_the_engine(repository: Path, engine: Any) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        load_version(engine, "broken", 1, repository / "broken" / "1", allow_programs=False)
    assert engine.loaded == {}


def test_programs_are_served_only_if_a_setting_allows_it(tmp_path: Path, engine: Any) -> None:
    step = {"op": "torch.ops.aten.neg.default", "args": [{"value": "x"}], "out": ["v"]}
    config = {"event_shape": (3,), "dtype": "float32", "tensors": {}, "steps": [step], "output": "v"}
    program = build("program", config)
    folder = save(
        tmp_path, "program", program, Decoder.identity((3,)), dataset={}, training={}, seed=0, dtype=torch.float32
    )
    with pytest.raises(CheckpointError, match="program/1: is a program; set PATHLINE_ALLOW_PROGRAMS=true"):
        load_version(engine, "program", 1, folder, allow_programs=False)
    served = load_version(engine, "program", 1, folder, allow_programs=True)
    assert served.describe()["card"]["architecture"]["config"]["steps"] == 1  # how many, not all of them
