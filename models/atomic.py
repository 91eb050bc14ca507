"""A folder of files that is seen complete under its name, or not at all."""

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

_STALE_S = 3600.0  # a temporary folder this old was left by a killed process


def publish(root: Path, target: Path, files: Mapping[str, bytes]) -> bool:
    """Write files into a temporary folder of `root` and rename it to `target`.

    Args:
        root: an existing folder, on the same file system as the target.
        target: a folder one below a folder of `root`; its parent is made.
        files: name and content of each file.

    Returns:
        True if `target` is now this; False if something already had the name, which is left as it was.

    Raises:
        OSError: the disk refuses; nothing is left behind.
    """
    # Not tempfile.mkdtemp: its folders are closed to other users, and a service often runs as another one.
    temporary = root / f".tmp-{target.parent.name}-{secrets.token_hex(8)}"
    temporary.mkdir()
    made = False
    try:
        for name, content in files.items():
            with (temporary / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _sync_folder(temporary)
        with contextlib.suppress(FileExistsError):
            target.parent.mkdir()
            made = True
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                return False
            raise
        _sync_folder(target.parent)
        _sync_folder(root)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # it holds a version, as it should
                target.parent.rmdir()


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_stale(root: Path) -> None:
    """Remove the temporary folders in `root` that killed processes left."""
    for path in root.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
