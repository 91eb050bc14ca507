"""Quotas of control groups, in both versions, of the group itself or of one around it."""

import math
from pathlib import Path

import pytest

from engine.device import cpu_quota


def _group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("cpu_", "cpu.", 1)).write_text(text)


@pytest.mark.parametrize(
    ("own", "groups", "quota"),
    [
        ("0::/\n", {".": {"cpu_max": "250000 100000\n"}}, 2.5),
        ("0::/\n", {".": {"cpu_max": "max 100000\n"}}, math.inf),
        ("0::/a/b\n", {"a": {"cpu_max": "100000 100000"}, "a/b": {"cpu_max": "max 100000"}}, 1.0),
        ("0::/of/the/host\n", {".": {"cpu_max": "50000 100000"}}, 0.5),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n",
            {"cpu/x": {"cpu_cfs_quota_us": "300000\n", "cpu_cfs_period_us": "100000\n"}},
            3.0,
        ),
        ("4:cpu,cpuacct:/x\n", {"cpu/x": {"cpu_cfs_quota_us": "-1", "cpu_cfs_period_us": "100000"}}, math.inf),
        ("0::/\n", {".": {"cpu_max": "nonsense"}}, math.inf),
        ("0::/\n", {}, math.inf),
    ],
)
def test_the_tightest_quota(tmp_path: Path, own: str, groups: dict[str, dict[str, str]], quota: float) -> None:
    (tmp_path / "own").write_text(own)
    for group, files in groups.items():
        _group(tmp_path / "cgroup" / group, **files)
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "own") == quota


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "none") == math.inf
