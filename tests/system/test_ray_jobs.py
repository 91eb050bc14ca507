"""Bulk jobs on Ray whose processes are killed."""

import os
import signal
from pathlib import Path

import pytest

from tests.system.bulk import JOB, begin, fleet, here, printed, workers_of
from tests.system.support import until

pytestmark = pytest.mark.system


def makers(environment: dict[str, str]) -> list[int]:
    """Return the Ray processes that make a shard of these models now, by the names that Ray gives them meanwhile."""
    ours, found = f"PATHLINE_MODELS_DIR={environment['PATHLINE_MODELS_DIR']}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            named = (process / "cmdline").read_bytes().startswith(b"ray::make")
            if named and ours in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_ray_makes_the_same_rows_also_after_its_only_worker_and_its_driver_were_killed(
    environment: dict[str, str], whole: str, tmp_path: Path
) -> None:
    arguments = ("sample", *JOB, "--to", str(tmp_path), "--workers", "1", "--on", "ray")
    killed = begin(environment, *arguments)
    until("receipts", lambda: len(list(tmp_path.glob("receipts/*"))) >= 3, 180)
    os.kill(until("a worker that makes a shard", lambda: makers(environment))[0], signal.SIGKILL)
    before = len(list(tmp_path.glob("receipts/*")))
    until("more receipts", lambda: len(list(tmp_path.glob("receipts/*"))) > before + 1, 180)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert printed(fleet(environment, *arguments)) == whole
    assert here(environment, "verify", str(tmp_path)) == whole


def test_ray_that_dies_ends_the_run_and_the_rest_is_made_by_the_next(
    environment: dict[str, str], whole: str, tmp_path: Path
) -> None:
    arguments = ("sample", *JOB, "--to", str(tmp_path), "--workers", "2", "--on", "ray")
    running = begin(environment, *arguments)
    until("receipts", lambda: len(list(tmp_path.glob("receipts/*"))) >= 3, 180)
    [raylet] = [each for each in workers_of(running) if Path(f"/proc/{each}/comm").read_text() == "raylet\n"]
    os.kill(raylet, signal.SIGKILL)
    _, said = running.communicate(timeout=180)
    assert running.returncode == 1, said
    assert "fleet: Ray has died on this machine; run this again to make the other shards" in said
    assert printed(fleet(environment, *arguments)) == whole
    assert here(environment, "verify", str(tmp_path)) == whole
