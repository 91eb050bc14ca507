"""Lock files of the image, with the SHA-256 of each wheel: ``python -m deploy.locks.generate`` writes them.

Versions are those of constraints.txt. Hashes come from the package indices, for CPython 3.11 wheels on Linux with
glibc, x86-64 and arm64. ``base.txt`` is for every image, ``torch-cpu.txt`` for torch's CPU build, ``torch-cuda.txt``
for the build of the default package index with its CUDA libraries. pip refuses a wheel with any other hash, and tests
compare the files with constraints.txt. Needs uv (``pip install -c constraints.txt uv``).
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
"""Prefixes of the packages that only torch's CUDA build needs."""

Pins = dict[str, dict[str, set[str]]]
"""Requirement (name==version) -> hash -> machines that the wheel supports."""


class LockError(Exception):
    """An index cannot be reached, or lacks a required wheel."""


def tags() -> dict[Tag, set[str]]:
    """Return the tags of the wheels that the image can install, each with its machines."""
    found: dict[Tag, set[str]] = {}
    for machine in MACHINES:
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 4, -1)]
        platforms += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
        for tag in (*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, "cp311", platforms)):
            found.setdefault(tag, set()).add(machine)
    return found


def resolve(requirements: list[str], machine: str, *options: str) -> dict[str, Any]:
    """Resolve requirements and their dependencies for a machine with uv; return the content of its pylock.toml.

    Raises:
        LockError: uv is missing, or cannot resolve the requirements.
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
    """Resolve requirements and their dependencies for all machines, with the hashes of the wheels that fit.

    Raises:
        LockError: uv cannot resolve the requirements, or there is no wheel for a machine.
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
    """Return a lock file with these pins, as pip reads it with --require-hashes."""

    def lines() -> Iterator[str]:
        yield from (f"# {line}" for line in (head, "Written by `make lock`; change constraints.txt and run it."))
        for pin in sorted(found):
            yield " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(found[pin]))])

    return "\n".join(lines()) + "\n"


def requirements() -> list[str]:
    """Return the requirements of the programs in the image, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["training"], *extras["fleet"]]


def main(argv: list[str] | None = None) -> int:
    """Write the files; return 1 if one of them could not be regenerated and is left unchanged."""
    parser = argparse.ArgumentParser(prog="python -m deploy.locks.generate", description=__doc__)
    parser.add_argument(
        "--torch-index", default=CPU_INDEX, metavar="URL", help="index with torch's wheels (default: %(default)s)"
    )
    parser.add_argument(
        "--torch-lock",
        default="torch-cpu",
        metavar="NAME",
        help="name of the lock file for that index (default: %(default)s)",
    )
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
    (LOCKS / "base.txt").write_text(text(base, "Packages of every image, except torch."))
    (LOCKS / "torch-cuda.txt").write_text(text(cuda, "torch of the package index, with its CUDA libraries."))
    (torch,) = (pin for pin in cuda if pin.startswith("torch=="))
    try:
        found = pins([torch], *constrained, "--index", torch_index, "--index-strategy", "unsafe-best-match")
    except LockError as error:
        print(f"{torch_lock} is unchanged: {torch_index} has no usable wheels of {torch}: {error}", file=sys.stderr)
        return 1
    other = {pin: hashes for pin, hashes in found.items() if pin not in base}  # with libraries that only torch needs
    torch_lock.write_text(text(other, f"torch of {torch_index}."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
