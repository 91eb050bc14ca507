"""Write what the image installs, with the SHA-256 of each wheel: ``python -m deploy.locks.generate``.

Versions are those of constraints.txt; hashes are what the indices say of the wheels for CPython 3.11 on Linux with
glibc, x86-64 and arm64. ``base.txt`` is for every image, ``torch-cpu.txt`` torch's build for CPUs, ``torch-cuda.txt``
that of the package index with its CUDA libraries. pip refuses a wheel whose hash is not there, and tests compare the
files with constraints.txt. Needs uv (``pip install -c constraints.txt uv``).
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
LOCKS = Path(__file__).parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYTHON = (3, 11)
MACHINES = ("x86_64", "aarch64")
_GLIBC = 36  # minor version, of the base image's Debian 12
_OF_TORCH = ("nvidia-", "cuda-", "triton")
"""How the names of packages begin that torch's CUDA build alone needs."""

Pins = dict[str, dict[str, set[str]]]
"""Requirement (name==version) -> hash -> machines that its wheel is for."""


class LockError(Exception):
    """An index cannot be asked, or does not have what is needed."""


def tags() -> dict[Tag, set[str]]:
    """The wheels that the image can install, with the machines."""
    found: dict[Tag, set[str]] = {}
    for machine in MACHINES:
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 4, -1)]
        platforms += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
        for tag in (*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, "cp311", platforms)):
            found.setdefault(tag, set()).add(machine)
    return found


def resolve(requirements: list[str], machine: str, *options: str) -> dict[str, Any]:
    """Ask uv for the closure of some requirements on a machine, as it stands in a pylock.toml.

    Raises:
        LockError: uv is missing, or found no way.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "requirements.in").write_text("\n".join(requirements))
        command = [
            "uv",
            "pip",
            "compile",
            "--no-config",
            "--quiet",
            "--format",
            "pylock.toml",
            "--only-binary",
            ":all:",
        ]
        command += ["--python-version", "3.11", "--python-platform", f"{machine}-manylinux_2_{_GLIBC}"]
        command += ["-o", "pylock.toml", "requirements.in", *options]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)  # noqa: S603
        except FileNotFoundError:
            raise LockError("uv is not installed; pip install -c constraints.txt uv") from None
        if done.returncode:
            raise LockError(done.stderr.strip())
        return tomllib.loads((place / "pylock.toml").read_text())


def pins(requirements: list[str], *options: str) -> Pins:
    """The closure of some requirements on all machines, with the hashes of the wheels that fit.

    Raises:
        LockError: uv found no way, or there is no wheel for a machine.
    """
    fitting, found = tags(), Pins()
    for machine in MACHINES:
        for package in resolve(requirements, machine, *options)["packages"]:
            pin = f"{canonicalize_name(package['name'])}=={package['version']}"
            hashes = found.setdefault(pin, {})
            for wheel in package["wheels"]:
                name = wheel.get("name") or unquote(urlsplit(wheel["url"]).path.rpartition("/")[2])
                fits = {fit for tag in parse_wheel_filename(name)[3] for fit in fitting.get(tag, ())}
                if fits:
                    hashes.setdefault(wheel["hashes"]["sha256"], set()).update(fits)
            if machine not in {fit for fits in hashes.values() for fit in fits}:
                raise LockError(f"{pin} has no wheel for {machine}")
    return found


def text(found: Pins, head: str) -> str:
    """The file of some pins, as pip reads it with --require-hashes."""

    def lines() -> Iterator[str]:
        yield from (f"# {line}" for line in (head, "Written by `make lock`; change constraints.txt and run it."))
        for pin in sorted(found):
            yield " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(found[pin]))])

    return "\n".join(lines()) + "\n"


def requirements() -> list[str]:
    """What the programs in the image need, as pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["training"], *extras["fleet"]]


def main(argv: list[str] | None = None) -> int:
    """Write the files; 1 if one of them could not be made anew, which leaves it as it was."""
    parser = argparse.ArgumentParser(prog="python -m deploy.locks.generate", description=__doc__)
    parser.add_argument("--torch-index", default=CPU_INDEX, metavar="URL", help="another site of torch (%(default)s)")
    parser.add_argument("--torch-lock", default="torch-cpu", metavar="NAME", help="its file (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        return _write(options.torch_index, LOCKS / f"{options.torch_lock}.txt")
    except LockError as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 1


def _write(torch_index: str, torch_lock: Path) -> int:
    constrained = ("-c", str(ROOT / "constraints.txt"))
    everything = pins(requirements(), *constrained)
    cuda = {pin: hashes for pin, hashes in everything.items() if pin.startswith((*_OF_TORCH, "torch=="))}
    base = {pin: hashes for pin, hashes in everything.items() if pin not in cuda}
    (LOCKS / "base.txt").write_text(text(base, "What every image installs, but for torch."))
    (LOCKS / "torch-cuda.txt").write_text(text(cuda, "torch of the package index, with its CUDA libraries."))
    (torch,) = (pin for pin in cuda if pin.startswith("torch=="))
    try:
        found = pins([torch], *constrained, "--index", torch_index, "--index-strategy", "unsafe-best-match")
    except LockError as error:
        print(f"{torch_lock} is as it was: {torch_index} gave no wheels of {torch}: {error}", file=sys.stderr)
        return 1
    other = {pin: hashes for pin, hashes in found.items() if pin not in base}  # with libraries that it alone needs
    torch_lock.write_text(text(other, f"torch of {torch_index}."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
