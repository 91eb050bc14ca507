"""The model repository on disk: `<root>/<name>/<version>/`, where the highest version is the one served.

A repository is only read here. Names come from requests, so a name must match a pattern, and its path must be inside
the root once symbolic links are followed.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from pathlib import Path

from models.checkpoint.card import CARD_FILE, MODEL_NAME, WEIGHTS_FILE, is_pickle
from models.checkpoint.plans import PLANS_FILE
from models.messages import printable
from models.regular import OUTSIDE, leads_out, open_regular

Signature = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and modification time of the files of a version, to see whether they have changed."""

_LONGEST_PATH = 4096
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

_BAD_NAME = "passed over: not a valid model name; use up to 64 of A-Z, a-z, 0-9, '.', '_', '-', a letter or digit first"
_NO_VERSION = "passed over: has no version; put the model into a subfolder called 1"
_BAD_VERSION = "passed over: not a version; use a whole number from 1, up to 18 digits, no leading zero"
_OUTSIDE = "passed over: leads out of the repository; copy the folder here instead"
_NOWHERE = "passed over: a broken link; copy the folder here instead"
TRAINING_FOLDER = ".training"
"""Folder of the repository in which each training of a model has a file, `<name>.json`, locked while it runs."""

FILE = "passed over: a file; a model is a folder <name>/<version>/ with its card and weights"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors that mean that there is no such file; any other means only that it cannot be accessed now."""


class RepositoryError(Exception):
    """The repository folder or something in it is missing, cannot be read, or leads out of the repository."""


class UnknownModel(LookupError):  # noqa: N818  (the name that the service and its clients know)
    """No model has this name, or it does not have this version; the message lists those that exist."""


class Repository:
    """The models in a folder. Each call looks at the disk again, so additions are seen at once.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def names(self) -> list[str]:
        """Return the models that have a version, or a folder that cannot be read, sorted.

        Raises:
            RepositoryError: the root is missing or cannot be read.
        """
        paths = (path for path in self._entries() if re.fullmatch(MODEL_NAME, path.name) and self._inside(path))
        return [path.name for path in paths if self._may_serve(path)]

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model, ascending.

        Raises:
            UnknownModel: there is no such model.
            RepositoryError: the root is missing, or the root or the model's folder cannot be read.
        """
        folder = self.root / name
        versions = self._versions(folder) if re.fullmatch(MODEL_NAME, name) and self._inside(folder) else []
        if not versions:
            names = ", ".join(self.names()) or "none: train or import one"
            raise UnknownModel(f"model is {name!r}; known models are {names}")
        return versions

    def resolve(self, name: str, version: int | None = None) -> Path:
        """Return the folder of a version of a model; None for the highest.

        Raises:
            UnknownModel: there is no such model, or it has no such version.
            RepositoryError: the root is missing, or the root or the model's folder cannot be read.
        """
        versions = self.versions(name)
        if version is None:
            version = versions[-1]
        elif version not in versions:
            raise UnknownModel(f"version is {version}; model {name!r} has {', '.join(map(str, versions))}")
        return self.root / name / str(version)

    def folder(self, name: str, version: int) -> Path:
        """Return the folder of a version, once its files are found inside the root; errors as in `signature`."""
        folder = self.resolve(name, version)
        for path in (folder / CARD_FILE, folder / WEIGHTS_FILE):
            if leads_out(path, self.root):
                raise RepositoryError(f"{path}: {OUTSIDE}")
        return folder

    def signature(self, name: str, version: int) -> Signature:
        """Return the signature of a version's files, which changes when they do; cheap, as no file is read.

        Raises:
            UnknownModel, RepositoryError: see `resolve`; also if a file leads out of the root, or
                cannot be accessed now.
        """
        folder = self.folder(name, version)
        return _state(folder / CARD_FILE), _state(folder / WEIGHTS_FILE)

    def plans_signature(self, name: str, version: int) -> Signature:
        """Return the signature of a version's tuned plans, which may change while it is loaded.

        It contains None if the file is missing or cannot be accessed.
        """
        try:
            return (_state(self.root / name / str(version) / PLANS_FILE),)
        except RepositoryError:
            return (None,)

    def weight_bytes(self, name: str, version: int) -> int:
        """Return the bytes of a version's tensors, 0 if they are missing; errors as in `signature`."""
        folder = self.folder(name, version)
        try:
            with open_regular(folder / WEIGHTS_FILE) as file:
                header = int.from_bytes(file.read(8), "little")
                return max(0, os.fstat(file.fileno()).st_size - 8 - header)
        except OSError:
            return 0

    def passed_over(self) -> list[tuple[Path, str]]:
        """Return folders, links and files that are not models or versions, each with the reason and what to do.

        Names that begin with a dot, such as a model being written, and anything that cannot be read are left out.

        Raises:
            RepositoryError: the root is missing or cannot be read.
        """
        reasons = []
        for path in self._entries():
            if path.name.startswith(".") or path.name == "lost+found":
                continue
            reason = self._odd(path, MODEL_NAME, _BAD_NAME)
            if reason is None and not self._may_serve(path):
                reason = _NO_VERSION
            if reason is not None:
                reasons.append((path, reason))
            if reason in (None, _NO_VERSION):
                with contextlib.suppress(OSError):  # reported by `versions`
                    inside = sorted(version for version in path.iterdir() if not version.name.startswith("."))
                    odd = ((version, self._odd(version, _VERSION.pattern, _BAD_VERSION)) for version in inside)
                    reasons += [(version, why) for version, why in odd if why is not None]
        return reasons

    def training(self) -> list[tuple[str, float | None]]:
        """Return the models being trained now, and the seconds that their training will take; None if not yet known."""
        names = []
        for path in sorted(self.root.glob(f"{TRAINING_FOLDER}/*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open_regular(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:  # its training runs; otherwise it was killed
                    left = json.loads(file.read(_LONGEST_PATH))["left_s"]
                    names.append((path.stem, None if left is None else float(left)))
        return names

    def within(self, path: Path) -> str:
        """Return a path relative to the root, on one line whatever its name contains."""
        return printable(path.relative_to(self.root), _LONGEST_PATH)

    def pickles(self) -> list[Path]:
        """Return files that look like pickles, which are never read: beside models, beside versions, or in them."""
        paths = set()
        for pattern in ("*", "*/*", "*/*/*"):
            paths.update(path for path in self.root.glob(pattern) if is_pickle(path) and path.is_file())
        return sorted(paths)

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.root.iterdir())
        except FileNotFoundError:
            what = "does not exist; train a model into it, or name another folder"
        except NotADirectoryError:
            what = "is not a folder"
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
        raise RepositoryError(f"model repository {self.root}: {what}")

    def _versions(self, folder: Path) -> list[int]:
        try:
            paths = list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            return []
        except OSError as error:
            raise RepositoryError(f"{folder}: cannot be read: {error.strerror or error}") from None
        return sorted(int(path.name) for path in paths if _VERSION.fullmatch(path.name) and self._inside(path))

    def _may_serve(self, folder: Path) -> bool:
        """Return whether a folder has versions, or may have some as it cannot be read, which must not go unnoticed."""
        try:
            return bool(self._versions(folder))
        except RepositoryError:
            return True

    def _odd(self, path: Path, named: str, badly: str) -> str | None:
        """Return why a path is not a folder with a name of this pattern, or None."""
        if not _is_folder(path):
            return _NOWHERE if path.is_symlink() and not os.path.isfile(path) else FILE  # noqa: PTH113  (it never raises)
        if not re.fullmatch(named, path.name):
            return badly
        return None if self._inside(path) else _OUTSIDE

    def _inside(self, path: Path) -> bool:
        """Return whether a path is a folder inside the root once symbolic links are followed."""
        return _is_folder(path) and not leads_out(path, self.root)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise RepositoryError(f"{path}: cannot be read: {error.strerror or error}") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder; also True if that cannot be determined now, so as not to seem absent."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return error.errno not in _GONE
    except ValueError:
        return False
