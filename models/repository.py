"""The model repository on disk: `<root>/<name>/<version>/`, where the highest version is the one served.

A repository is only read here. Names come from requests, so a name is first held against a pattern, and what it
leads to must lie inside the root once symbolic links are followed.
"""

import re
from pathlib import Path

from models.card import MODEL_NAME, is_pickle

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class RepositoryError(Exception):
    """The repository folder is missing or cannot be read."""


class UnknownModel(LookupError):  # noqa: N818  the name the service and its clients know it by
    """No model has this name.

    Attributes:
        name: the name asked for.
        available: the names there are.
    """

    def __init__(self, name: str, available: list[str]) -> None:
        known = ", ".join(available) or "none: train or import one"
        super().__init__(f"model is {name!r}; known models are {known}")
        self.name = name
        self.available = available


class UnknownVersion(LookupError):  # noqa: N818  as above
    """A model does not have this version.

    Attributes:
        name: the model.
        version: the version asked for.
        available: the versions there are.
    """

    def __init__(self, name: str, version: int, available: list[int]) -> None:
        super().__init__(f"version is {version}; model {name!r} has {', '.join(map(str, available))}")
        self.name = name
        self.version = version
        self.available = available


class Repository:
    """The models below a folder. Each call looks at the disk again, so what is added there is seen at once.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def names(self) -> list[str]:
        """The models with at least one version, sorted.

        Raises:
            RepositoryError: the root is missing or cannot be read.
        """
        return [path.name for path in self._entries() if self._model(path) and self._versions(path)]

    def versions(self, name: str) -> list[int]:
        """The versions of a model, ascending.

        Raises:
            UnknownModel: there is no such model.
            RepositoryError: the root is missing or cannot be read.
        """
        folder = self.root / name
        versions = self._versions(folder) if re.fullmatch(MODEL_NAME, name) and self._model(folder) else []
        if not versions:
            raise UnknownModel(name, self.names())
        return versions

    def resolve(self, name: str, version: int | None = None) -> Path:
        """The folder of a version of a model; None is the highest.

        Raises:
            UnknownModel: there is no such model.
            UnknownVersion: the model has no such version.
            RepositoryError: the root is missing or cannot be read.
        """
        versions = self.versions(name)
        if version is None:
            version = versions[-1]
        elif version not in versions:
            raise UnknownVersion(name, version, versions)
        return self.root / name / str(version)

    def pickles(self) -> list[Path]:
        """Files that look like pickles, which are never read: beside models, versions, or in them."""
        found = set()
        for pattern in ("*", "*/*", "*/*/*"):
            found.update(path for path in self.root.glob(pattern) if is_pickle(path) and path.is_file())
        return sorted(found)

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

    def _model(self, path: Path) -> bool:
        return re.fullmatch(MODEL_NAME, path.name) is not None and self._inside(path)

    def _versions(self, folder: Path) -> list[int]:
        try:
            paths = list(folder.iterdir())
        except OSError:  # not a folder, gone meanwhile or closed to us: a model without versions is none
            return []
        return sorted(int(path.name) for path in paths if _VERSION.fullmatch(path.name) and self._inside(path))

    def _inside(self, path: Path) -> bool:
        """Whether a path is a folder that lies inside the root, symbolic links followed."""
        try:
            return path.is_dir() and path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # a loop of links
            return False
