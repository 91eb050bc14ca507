"""Data folders: which files are data, and which were left there by operating systems and archivers.

One rule applies to all folders: names that begin with a dot are skipped with everything below them, as are the files
and folders that operating systems and archivers leave behind; other files are selected by their suffix.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from training.errors import DataError

_SYSTEM = {
    "__macosx",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "@eadir",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "__pycache__",
}
"""Names that other software leaves behind, in lower case: macOS, Windows, storage servers, file systems, Python."""

_SHOWN = 3  # names of each kind


@dataclass(frozen=True)
class Listing:
    """The files of a folder and of those below it.

    Attributes:
        files: data files, in the order of their paths.
        skipped: names of skipped files and folders, by kind; a folder counts as one.
    """

    files: list[Path]
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def summary(self) -> str:
        """Return a summary of what was skipped: counts by kind with a few names, or an empty text."""
        parts = []
        for kind, names in sorted(self.skipped.items()):
            found = sorted(set(names))
            more = ", ..." if len(found) > _SHOWN else ""
            parts.append(f"{len(names):,} {kind} ({', '.join(found[:_SHOWN])}{more})")
        return f"skipped {', '.join(parts)}" if parts else ""


def list_files(folder: Path, suffixes: Collection[str]) -> Listing:
    """Find the files whose names end in one of the suffixes, in a folder and those below it; links are followed.

    Args:
        folder: where to look; its own name does not matter.
        suffixes: in lower case, with the dot.

    Raises:
        DataError: a folder cannot be read.
    """
    files: list[Path] = []
    skipped: dict[str, list[str]] = {}
    for path in _walk(folder):
        kind = _kind(path, suffixes)
        if kind:
            shown = path.suffix if kind == "of other kinds" and path.suffix else path.name
            skipped.setdefault(kind, []).append(shown)
        else:
            files.append(path)
    return Listing(sorted(files), skipped)


def _kind(path: Path, suffixes: Collection[str]) -> str:
    """Return why a file or folder is skipped, as words that follow a count; empty for data."""
    if path.name.startswith("."):
        return "hidden"
    if _foreign(path.name):
        return "of the system"
    if path.suffix.lower() not in suffixes:
        return "of other kinds"
    return "" if path.is_file() else "that are broken links or not files"


def _foreign(name: str) -> bool:
    return name.lower() in _SYSTEM or name.startswith("~$")


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file, and each folder that is not entered."""

    def fail(error: OSError) -> None:
        raise DataError(f"data folder {error.filename} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        here = Path(place)
        entered = []
        for name in sorted(folders):
            if name.startswith(".") or _foreign(name):
                yield here / name
            elif not _is_cyclic(here / name):
                entered.append(name)
        folders[:] = entered
        yield from (here / name for name in sorted(names))


def _is_cyclic(folder: Path) -> bool:
    """Return whether a linked folder contains itself, so that a walk through it would not end."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
