"""The locks name everything that the image installs, in the versions of constraints.txt, each with its hashes."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.locks import generate

ROOT = Path(__file__).parents[2]
Lock = dict[str, tuple[str, list[str]]]


def read(name: str) -> Lock:
    """Read a lock as name -> (version, hashes); every line must have the form that pip reads."""
    lines = [line for line in (ROOT / "deploy/locks" / f"{name}.txt").read_text().splitlines() if line[0] != "#"]
    found: Lock = {}
    for entry in "\n".join(lines).replace(" \\\n", " ").splitlines():
        pin, *hashes = entry.split()
        assert hashes
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes)
        assert len(set(hashes)) == len(hashes)
        package, version = pin.split("==")
        assert package == canonicalize_name(package)
        assert package not in found
        found[package] = (version, hashes)
    return found


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins.items()}


def closure(names: list[str]) -> set[str]:
    """Return the packages that these need on the image's Python, according to the installed metadata."""
    image: Any = {**default_environment(), "sys_platform": "linux", "python_version": "3.11", "extra": ""}
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate(image)):
            continue
        found.add(name)
        if name != "torch":  # its build here may be another
            waiting += map(Requirement, importlib.metadata.requires(name) or [])
    return found


@pytest.mark.parametrize("name", ["base", "torch-cpu", "torch-cuda"])
def test_every_pin_is_that_of_the_constraints(name: str) -> None:
    ours = constraints()
    for package, (version, _) in read(name).items():
        if package.startswith(generate._OF_TORCH):  # CUDA's libraries, which are not installed elsewhere
            assert name == "torch-cuda"
            continue
        assert version == ours[package] + ("+cpu" if name == "torch-cpu" else "")


def test_the_base_has_all_that_the_service_and_the_training_need_and_torch_is_apart() -> None:
    base = read("base")
    needed = closure(generate.requirements())
    assert "torch" in needed
    assert needed - {"torch"} <= set(base)
    # torch's own needs are in it, too, whichever build is installed
    assert set(base) - needed <= closure(["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy"])
    assert set(read("torch-cpu")) == {"torch"}
    assert "torch" in read("torch-cuda")


def test_torch_has_a_build_for_each_machine() -> None:
    for name in ("torch-cpu", "torch-cuda"):
        assert len(read(name)["torch"][1]) == len(generate.MACHINES)


def wheel(name: str, digest: str) -> dict[str, Any]:
    return {"url": f"https://index.example/files/{name}", "hashes": {"sha256": digest * 64}}


def test_only_wheels_that_the_image_can_install_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [
        wheel("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "1"),
        wheel("a-1.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", "2"),
        wheel("a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "3"),
        wheel("a-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", "4"),
        wheel("a-1.0-cp311-cp311-manylinux_2_39_x86_64.whl", "5"),  # for a newer glibc
        wheel("a-1.0-cp311-cp311-win_amd64.whl", "6"),
    ]
    plain = {"name": "B.b", "version": "2", "wheels": [wheel("b_b-2-py3-none-any.whl", "7")]}
    stable = {"name": "c", "version": "3", "wheels": [wheel("c-3-cp39-abi3-manylinux2014_x86_64.whl", "8")]}
    answer = {"packages": [{"name": "a", "version": "1.0", "wheels": wheels}, plain]}
    monkeypatch.setattr(generate, "resolve", lambda requirements, machine, *options: answer)
    found = generate.pins(["a"])
    assert {pin: sorted(hashes) for pin, hashes in found.items()} == {
        "a==1.0": ["1" * 64, "2" * 64],
        "b-b==2": ["7" * 64],
    }
    assert generate.text({"a==1.0": found["a==1.0"]}, "Head.").splitlines()[2:] == [
        "a==1.0 \\",
        f"    --hash=sha256:{'1' * 64} \\",
        f"    --hash=sha256:{'2' * 64}",
    ]
    answer["packages"].append(stable)
    with pytest.raises(generate.LockError, match="c==3 has no wheel for aarch64"):
        generate.pins(["a"])


def test_an_index_that_cannot_be_reached_leaves_its_lock_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pins(requirements: list[str], *options: str) -> generate.Pins:
        if "--index" in options:
            raise generate.LockError("no way there")
        names = ("torch==2.0", "nvidia-x==1", "a==1")
        return {name: {"0" * 64: set(generate.MACHINES)} for name in names}

    monkeypatch.setattr(generate, "pins", pins)
    monkeypatch.setattr(generate, "LOCKS", tmp_path)
    (tmp_path / "torch-cpu.txt").write_text("as it was")
    assert generate.main([]) == 1
    assert "is unchanged" in capsys.readouterr().err
    assert (tmp_path / "torch-cpu.txt").read_text() == "as it was"
    assert "nvidia-x==1" in (tmp_path / "torch-cuda.txt").read_text()
    base = (tmp_path / "base.txt").read_text()
    assert "a==1" in base
    assert "torch" not in base.splitlines()[2]


def test_without_uv_nothing_is_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert generate.main([]) == 1
    assert "nothing was written: uv is not installed" in capsys.readouterr().err


def test_constraints_pin_what_writes_the_locks() -> None:
    assert "uv" in constraints()
    assert "setuptools" in constraints()  # torch needs it
    assert "packaging" in constraints()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert generate.requirements()[0] == project["dependencies"][0]
