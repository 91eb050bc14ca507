"""Bound files: JSON beside the weights of a checkpoint that states their hash, such as tuned plans.

They contain numbers and names, nothing executable. If one cannot be used, the checkpoint is served without it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import Field, JsonValue, ValidationError

from models.frozen import Frozen
from models.messages import explain
from models.regular import LeadsOut, open_inside, write_atomically

SHA256 = r"^[0-9a-f]{64}$"

_MAX_BYTES = 8 << 20
_UNSIGNED = "0" * 64

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Bound(Frozen):
    """The content of a bound file.

    Attributes:
        weights_sha256: hash of the weights that it belongs to.
        sha256: hash of the file without this field, so that damage and edits are noticed; zeros in memory.
    """

    weights_sha256: str = Field(pattern=SHA256)
    sha256: str = Field(default=_UNSIGNED, pattern=SHA256)


B = TypeVar("B", bound=Bound)


@dataclass(frozen=True)
class BoundFile(Generic[B]):
    """One kind of bound file.

    Attributes:
        name: file name.
        content: the pydantic model of its content.
        error: raised for a file that cannot be read, trusted or written.
        remedy: how to make the file again.
    """

    name: str
    content: type[B]
    error: type[Exception]
    remedy: str

    def read(self, folder: Path, weights_sha256: str) -> B | None:
        """Read and check the file; return None if a checkpoint has none. Errors quote no values of the file.

        Args:
            folder: folder of the checkpoint.
            weights_sha256: hash of its weights.

        Raises:
            Exception: `error`; the file cannot be read, leads out of the repository, is damaged or too large, or
                belongs to other weights.
        """
        path = folder / self.name
        try:
            with open_inside(folder, self.name) as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except LeadsOut as error:
            raise self.error(f"{path}: {error.strerror}") from None
        except OSError as error:
            raise self.error(f"{path}: cannot be read: {error.strerror or error}") from None
        if len(content) > _MAX_BYTES:
            raise self.error(f"{path}: is larger than {_MAX_BYTES} bytes, the limit for this file")
        try:
            stored = self.content.model_validate_json(content)
            expected = _sha256(json.loads(content))
        except ValidationError as error:
            fault = explain(error, values=False)
        except (ValueError, RecursionError) as error:
            fault = str(error)
        else:
            if stored.sha256 == expected and stored.weights_sha256 == weights_sha256:
                return stored.model_copy(update={"sha256": _UNSIGNED})
            fault = f"is damaged or was edited: sha256 found {stored.sha256}, expected {expected}"
            if stored.sha256 == expected:
                found_for = stored.weights_sha256
                fault = f"belongs to other weights: weights_sha256 found {found_for}, the card has {weights_sha256}"
        raise self.error(f"{path}: {fault}; {self.remedy}")

    def write(self, folder: Path, content: B) -> Path:
        """Write the file atomically, in place of an earlier one.

        Raises:
            Exception: `error`; writing failed, and an earlier file is unchanged.
        """
        path = folder / self.name
        try:
            fields = content.model_dump(mode="json")
            write_atomically(path, as_json(fields | {"sha256": _sha256(fields)}))
        except OSError as error:
            raise self.error(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from None
        return path


def _sha256(fields: dict[str, JsonValue]) -> str:
    return hashlib.sha256(as_json({name: value for name, value in fields.items() if name != "sha256"})).hexdigest()


def as_json(fields: dict[str, JsonValue]) -> bytes:
    """Return fields as JSON: indented, sorted, without NaN."""
    return json.dumps(fields, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
