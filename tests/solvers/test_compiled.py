"""Machine code shipped in an image is used if nothing can be written beside the sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOOP = """
from solvers.compiled import compiled

@compiled
def twice(x):
    return 2 * x

if __name__ == "__main__":
    assert twice(2.0) == 4.0
    print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))
"""
_FULL = """
import errno, os
import numba.core.caching

def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

numba.core.caching.os.replace = full
import solvers.loop
assert solvers.loop.twice(2.0) == 4.0
"""


def run(sources: Path, cache: Path | None) -> list[int]:
    """Run the loop in a separate process; return how often machine code was found on disk, and how often not."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-m", "solvers.loop"], cwd=sources, env=environment, capture_output=True, text=True, check=True
    )
    return [int(count) for count in done.stdout.split()]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return sources with one compiled loop, and their machine code."""
    package = tmp_path_factory.mktemp("image") / "solvers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "compiled.py").write_text((ROOT / "solvers" / "compiled.py").read_text())
    (package / "loop.py").write_text(_LOOP)
    assert run(package.parent, None) == [0, 1]
    return package.parent


def test_code_beside_the_sources_is_taken_to_the_folder_that_can_be_written(image: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tmp" / "numba"
    assert run(image, cache) == [1, 0]
    [kept] = cache.iterdir()
    assert kept.name.startswith("compiled-")
    assert (image / "solvers" / "__pycache__" / kept.name).is_dir()


def test_code_of_other_sources_is_not_taken(image: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(image, tmp_path / "changed"))
    with (changed / "solvers" / "loop.py").open("a") as file:
        file.write("# changed\n")
    assert run(changed, tmp_path / "numba") == [0, 1]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from solvers import compiled

    occupied = tmp_path / "occupied"
    occupied.write_text("a file, no folder")
    brought = tmp_path / "compiled-0"
    brought.mkdir()
    compiled._copy(brought, occupied / "compiled-0")
    assert occupied.read_text() == "a file, no folder"
    there = tmp_path / "there" / "compiled-0"
    there.mkdir(parents=True)
    (there / "first").touch()
    compiled._copy(brought, there)
    assert [path.name for path in there.parent.rglob("*")] == ["compiled-0", "first"]


def test_where_the_cache_cannot_be_written_loops_are_compiled_anew(image: Path, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file, no folder")
    assert run(image, occupied)[0] == 0
    assert occupied.read_text() == "a file, no folder"


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    """Each of eight loops has an index or machine code that is damaged in its own way."""
    package = tmp_path / "solvers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "compiled.py").write_text((ROOT / "solvers" / "compiled.py").read_text())
    kinds = [f"{damage}_{suffix}" for damage in ("empty", "cut", "flipped", "text") for suffix in ("nbi", "nbc")]
    loops = "\n".join(f"@compiled\ndef {kind}(x):\n    return 2 * x\n" for kind in kinds)
    calls = "\n".join(f"    assert {kind}(2.0) == 4.0\n    count({kind})" for kind in kinds)
    count = "found = []\ndef count(loop):\n    found.append(sum(loop.stats.cache_hits.values()))\n"
    main = f"if __name__ == '__main__':\n{calls}\n    print(*found)\n"
    (package / "loop.py").write_text("\n".join(["from solvers.compiled import compiled", loops, count, main]))
    cache = tmp_path / "numba"
    assert run(tmp_path, cache) == [0] * 8
    for kind in kinds:
        damage, suffix = kind.split("_")
        [file] = cache.rglob(f"*.{kind}-*.{suffix}")
        content = file.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        file.write_bytes({"empty": b"", "cut": content[:middle], "flipped": flipped, "text": b"text"}[damage])
    assert run(tmp_path, cache) == [0] * 8
    assert run(tmp_path, cache) == [1] * 8


def test_a_full_disk_is_told_with_the_folder_and_the_loops_run(image: Path, tmp_path: Path) -> None:
    cache = tmp_path / "numba"
    cache.mkdir()
    changed = Path(shutil.copytree(image, tmp_path / "changed", ignore=shutil.ignore_patterns("__pycache__")))
    done = subprocess.run(
        [sys.executable, "-c", _FULL],
        cwd=changed,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{cache}/compiled-" in done.stderr
    assert "No space left on device" in done.stderr
