import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.processes import Forked, free_port
from training.config import load_recipe
from training.devices import Group
from training.errors import UsageError
from training.fit import Options, fit

RECIPE = """
name = "tiny"
epochs = 5
batch_size = 64
clip = 1.0
[data]
name = "vectors"
path = "{path}"
[network]
hidden = 16
blocks = 1
"""


def test_shares_of_a_batch_are_whole():
    for rows in (1, 2, 5, 64):
        parts = [list(range(rows))[Group(rank, 3).share(rows)] for rank in range(3)]
        assert [row for part in parts for row in part] == list(range(rows))


SCRIPT = """
import os, sys
from pathlib import Path
from training.__main__ import main

assert main(sys.argv[2:]) == 0
names = sorted(Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
Path(sys.argv[1], os.environ["RANK"]).write_text(" ".join(name for name in names if "gloo" in name))
"""
"""Trains as ``python -m training`` does, and writes which threads of the group are left."""


def test_two_processes_follow_the_losses_of_one_with_the_doubled_batch(tmp_path: Path):
    """Started with torchrun's variables. No thread of the group is left: it may abort the process at its end."""
    data, config = tmp_path / "points.npy", tmp_path / "recipe.toml"
    np.save(data, np.random.default_rng(0).normal(size=(321, 2)))
    config.write_text(RECIPE.format(path=data))
    places = ["--models-dir", str(tmp_path / "two"), "--runs-dir", str(tmp_path / "runs"), "--device", "cpu"]
    places += ["--seconds", "0"]
    command = ["-c", SCRIPT, str(tmp_path), "fit", "vectors", "--config", str(config), *places]
    # Each of the two takes 32 of the 64 samples of a batch.
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    outputs = [tmp_path / f"{rank}.txt" for rank in "01"]
    two = [
        Forked(command, os.environ | meeting | {"RANK": rank, "LOCAL_RANK": rank}, output)
        for rank, output in zip("01", outputs, strict=True)
    ]
    printed = ""
    for process, output in zip(two, outputs, strict=True):
        assert process.wait(120) == 0, output.read_text()
        printed += output.read_text()
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["", ""]
    assert printed.count("training 1,730 parameters") == 1  # only the first process prints and writes
    assert [path.name for path in (tmp_path / "two" / "tiny").iterdir()] == ["1"]
    assert list((tmp_path / "runs").iterdir()) == []
    one = fit(load_recipe(config), Options(tmp_path / "one", tmp_path / "runs", device="cpu", seconds=0))
    losses = [
        json.loads((folder / "card.json").read_text())["training"]["losses"]
        for folder in (one, tmp_path / "two" / "tiny" / "1")
    ]
    assert len(losses[0]) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_half_an_environment_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(UsageError, match="WORLD_SIZE is 2, but not set: MASTER_ADDR, MASTER_PORT; use torchrun"):
        Group.join(torch.device("cpu"))
