"""Local worker processes that are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.launchers import Local
from fleet.maker import devices
from fleet.run import run
from fleet.store import Target
from service.settings import Settings
from tests.fleet.conftest import Fleet
from tests.fleet.pretended import never_done, pretend
from tests.processes import start


def test_a_worker_that_dies_is_replaced_and_its_shard_is_retried(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path
) -> None:
    assert fleet("sample", "net", to=tmp_path / "job", **job) == 0
    target = Target(str(tmp_path / "job"))
    for receipt in (tmp_path / "job" / "receipts").iterdir():
        receipt.unlink()
    spec = target.spec()
    assert spec is not None
    launcher = Local(str(tmp_path), {}, 2, ["cuda:0", "cuda:1"], entry=pretend)
    queue = run(spec, target, launcher, tries=3, quiet=True)
    assert len(list(tmp_path.glob("by-*"))) == 3
    assert queue.failed == {1: "its worker died (signal SIGKILL, perhaps out of memory)"}


def test_each_worker_has_its_own_device(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices(Settings()) == ["cuda:0", "cuda:1"]
    assert devices(Settings(device="cuda:1")) == ["cuda:1"]
    monkeypatch.undo()
    launcher = Local(str(tmp_path), {}, 2, ["cuda:0", "cuda:1"], entry=pretend)
    for shard in (3, 4):
        launcher.begin(shard)
    ended: list[int] = []
    while len(ended) < 2:
        launcher.wait(lambda event: ended.append(event.shard))
    launcher.close()
    assert sorted(path.name for path in tmp_path.glob("by-*")) == ["by-3-cuda:0", "by-4-cuda:1"]


def test_a_worker_that_is_stopped_cleans_up_and_ends_with_its_threads(tmp_path: Path) -> None:
    launcher = Local(str(tmp_path), {}, 1, ["cpu"], entry=never_done)
    launcher.begin(0)
    (place,) = launcher._places
    process, seen = place.process, list[str]()
    while not seen:
        launcher.wait(lambda event: seen.append(event.kind))
    launcher.close()
    assert seen == ["progress"]
    assert process is not None
    assert process.exitcode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["unwound"]


ABORTS = "import atexit, os, runpy; atexit.register(os.abort); runpy.run_module('fleet', run_name='__main__')"
"""`python -m fleet` in a Python that would abort while it is finalized, as libraries of object stores may."""


def begin(repository: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PATHLINE_MODELS_DIR": str(repository)}
    return start([sys.executable, "-c", ABORTS, "sample", *arguments, "--quiet"], environment)


def await_receipts(folder: Path, many: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and len(list(folder.glob("receipts/*"))) < many:
        time.sleep(0.01)


def test_ctrl_c_leaves_a_job_that_can_be_resumed(
    fleet: Fleet, job: dict[str, Any], repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job |= {"total": 64 * 40, "solver": "rk4-300"}
    assert fleet("sample", "net", to="memory://whole", **job | {"shard_rows": 640}) == 0
    whole = capsys.readouterr().out.split()[-1]
    arguments = [part for name, value in job.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    stopped = begin(repository, "net", "--to", str(tmp_path), *arguments)
    await_receipts(tmp_path, 3, stopped)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does, to the worker too
    _, errors = stopped.communicate()
    assert stopped.returncode == 130, errors
    assert errors == f"fleet: stopped; resume with: python -m fleet sample --to {tmp_path}\n"
    assert 3 <= len(Target(str(tmp_path)).done()) < 40
    assert fleet("sample", to=tmp_path) == 0
    assert capsys.readouterr().out.split()[-1] == whole
    assert fleet("verify", tmp_path) == 0
    assert not (tmp_path / "tmp").exists()
