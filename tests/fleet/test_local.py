"""Local worker processes that are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pathline.bulk_folder import ShardQueue

from fleet.errors import FleetError, TargetError
from fleet.maker import devices
from fleet.run import run
from fleet.store import Target
from fleet.workers import Local, Tell
from service.settings import Settings
from tests.fleet.conftest import Fleet
from tests.fleet.pretended import never_done, pretend, slow_to_stop
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
    workers = [Local(str(tmp_path), {}, device, entry=pretend) for device in ("cuda:0", "cuda:1")]
    queue = ShardQueue(target, spec, tries=3)
    run(queue, workers, quiet=True)
    assert len(list(tmp_path.glob("by-*"))) == 3
    assert queue.failed == {1: "its worker died (signal SIGKILL, perhaps out of memory)"}


def test_each_worker_has_its_own_device(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as machine:
        machine.setattr("torch.cuda.is_available", lambda: True)
        machine.setattr("torch.cuda.device_count", lambda: 2)
        assert devices(Settings()) == ["cuda:0", "cuda:1"]
        assert devices(Settings(device="cuda:1")) == ["cuda:1"]
    chosen: list[str] = []

    def local(url: str, options: dict[str, Any], device: str) -> Local:
        chosen.append(device)
        return Local(url, options, device, entry=pretend)

    monkeypatch.setattr("fleet.maker.devices", lambda settings: ["cuda:0", "cuda:1"])
    monkeypatch.setattr("fleet.__main__.Local", local)
    assert fleet("sample", "net", to=tmp_path, on="local", workers=3, **job) == 1  # nothing has a receipt
    assert chosen == ["cuda:0", "cuda:1", "cuda:0"]
    assert {path.name[5:] for path in tmp_path.glob("by-*")} <= {"cuda:0", "cuda:1"}


def test_a_worker_that_is_stopped_cleans_up_and_ends_with_its_threads(tmp_path: Path) -> None:
    worker, began, ended = Local(str(tmp_path), {}, "cpu", entry=never_done), threading.Event(), list[str]()
    waiting = threading.Thread(target=lambda: ended.append(str(worker.make(0, lambda rows: began.set()))))
    waiting.start()
    assert began.wait(60)
    worker.close()
    waiting.join()
    assert ended == ["its worker died (exit code 1)"]
    assert [path.name for path in tmp_path.iterdir()] == ["unwound"]


class Fatal:
    """A worker that finds the target at fault as soon as a condition holds."""

    def __init__(self, begun: Callable[[], bool]) -> None:
        self._begun = begun

    def make(self, shard: int, tell: Tell) -> TargetError:
        while not self._begun():
            time.sleep(0.01)
        return TargetError("the disk is full")

    def close(self) -> None:
        pass


def queue_of(fleet: Fleet, job: dict[str, Any], folder: Path) -> ShardQueue:
    target = Target(str(folder))
    assert fleet("sample", "net", to=target.address, **job | {"total": 64 * 4}) == 0
    for receipt in folder.glob("receipts/*"):
        receipt.unlink()
    spec = target.spec()
    assert spec is not None
    return ShardQueue(target, spec, tries=3)


def test_all_workers_are_stopped_at_once(fleet: Fleet, job: dict[str, Any], tmp_path: Path) -> None:
    queue = queue_of(fleet, job, tmp_path)
    busy = [Local(str(tmp_path), {}, "cpu", entry=slow_to_stop) for _ in range(3)]
    with pytest.raises(TargetError, match="the disk is full"):
        run(queue, [*busy, Fatal(lambda: len(list(tmp_path.glob("began-*"))) == 3)], quiet=True)
    assert len(list(tmp_path.glob("ended-*"))) == 3  # none was killed while it waited for the others


def test_a_worker_that_is_about_to_start_when_another_fails_does_not_start(
    fleet: Fleet, job: dict[str, Any], tmp_path: Path
) -> None:
    queue, closed, taken = queue_of(fleet, job, tmp_path), threading.Event(), threading.Event()

    class Late(Local):
        def make(self, shard: int, tell: Tell) -> FleetError | None:
            taken.set()
            assert closed.wait(60)
            return super().make(shard, tell)

        def close(self) -> None:
            super().close()
            closed.set()

    with pytest.raises(TargetError, match="the disk is full"):
        run(queue, [Late(str(tmp_path), {}, "cpu", entry=pretend), Fatal(taken.is_set)], quiet=True)
    assert not list(tmp_path.glob("by-*")) + list(tmp_path.glob("tried-*"))


def test_ctrl_c_unwinds_the_only_worker(fleet: Fleet, job: dict[str, Any], tmp_path: Path) -> None:
    unwound: list[int] = []

    class Interrupted:
        def make(self, shard: int, tell: Tell) -> None:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            finally:
                unwound.append(shard)

        def close(self) -> None:
            assert unwound

    with pytest.raises(KeyboardInterrupt):
        run(queue_of(fleet, job, tmp_path), [Interrupted()], quiet=True)
    assert unwound == [0]


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
