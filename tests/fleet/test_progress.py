"""The progress bar of a run."""

import re
from pathlib import Path
from typing import Any

import pytest
from pathline.bulk_folder import ShardQueue
from tqdm import tqdm

from fleet.run import run
from fleet.store import Target
from fleet.workers import Tell
from tests.fleet.conftest import Fleet


class Pretended:
    """A worker that makes nothing and reports the middle of each shard."""

    def make(self, shard: int, tell: Tell) -> None:
        tell(4)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("quiet", [False, True])
def test_rate_and_time_left_are_shown_unless_quiet(
    fleet: Fleet,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    assert fleet("sample", "net", to=tmp_path, **job) == 0
    target = Target(str(tmp_path))
    spec = target.spec()
    assert spec is not None
    for shard in (2, 3):
        (tmp_path / "receipts" / f"0000{shard}.json").unlink()
    capsys.readouterr()
    at_once: dict[str, Any] = {"mininterval": 0, "maxinterval": 0, "miniters": 0}  # instead of now and then
    monkeypatch.setattr("fleet.run.tqdm", lambda **options: tqdm(**options | at_once))
    run(ShardQueue(target, spec, tries=3), [Pretended()], quiet)
    out, errors = capsys.readouterr()
    assert out == ""
    if quiet:
        assert errors == ""
        return
    shown = re.findall(r"([\d.]+)/200 \[\d\d:\d\d<(\S+), +(\S+?)sample/s\]", errors)
    done = list(dict.fromkeys(done for done, *_ in shown))
    assert done == ["128", "132", "192", "196", "200"]  # the first two shards were done before
    for _, left, rate in shown[1:]:
        assert re.fullmatch(r"[\d:]+", left)
        assert re.fullmatch(r"[\d.]+[kMG]?", rate)
