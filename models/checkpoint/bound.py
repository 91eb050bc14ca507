"""Bound files: JSON beside the weights of a checkpoint that states their hash: tuned plans, a frontier, a report.

They contain numbers and names, nothing executable. If one cannot be used, the checkpoint is served without it. The card
does not mention them: its hash is that of the checkpoint, and must not change when a model is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, JsonValue

from models.checkpoint.card import Card, CheckpointError
from models.frozen import Sparse, json_bytes, own_sha256
from models.messages import explain
from models.regular import LeadsOut, open_inside, write_atomically

SHA256 = r"^[0-9a-f]{64}$"
REPORT_FILE = "report.json"

_INDENT = 1
_MAX_BYTES = 8 << 20
_UNSIGNED = "0" * 64

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BoundFileError(CheckpointError):
    """A bound file cannot be read, trusted or written; the message names the file and the fault."""


class Bound(Sparse):
    """The content of a bound file.

    Attributes:
        file_name: its name.
        remedy: how to make it again.
        weights_sha256: hash of the weights that it belongs to.
        sha256: hash of the file without this field, so that damage and edits are noticed; zeros in memory.
    """

    file_name: ClassVar[str]
    remedy: ClassVar[str] = "measure it again"

    weights_sha256: str = Field(pattern=SHA256)
    sha256: str = Field(default=_UNSIGNED, pattern=SHA256)

    @classmethod
    def read(cls, folder: Path, weights_sha256: str) -> Self | None:
        """Read and check the file; return None if a checkpoint has none. Errors quote no values of the file.

        Args:
            folder: folder of the checkpoint.
            weights_sha256: hash of its weights.

        Raises:
            BoundFileError: the file cannot be read, leads out of the repository, is damaged or too large, or belongs to
                other weights.
        """
        path = folder / cls.file_name
        try:
            with open_inside(folder, cls.file_name) as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except LeadsOut as error:
            raise BoundFileError(f"{path}: {error.strerror}") from None
        except OSError as error:
            raise BoundFileError(f"{path}: cannot be read: {error.strerror or error}") from None
        if len(content) > _MAX_BYTES:
            raise BoundFileError(f"{path}: is larger than {_MAX_BYTES} bytes, the limit for this file")
        try:
            stored = cls.model_validate_json(content)
            expected = own_sha256(json.loads(content), "sha256", _INDENT)
        except (ValueError, RecursionError) as error:
            fault = explain(error, values=False)
        else:
            if stored.sha256 == expected and stored.weights_sha256 == weights_sha256:
                return stored.model_copy(update={"sha256": _UNSIGNED})
            fault = f"is damaged or was edited: sha256 found {stored.sha256}, expected {expected}"
            if stored.sha256 == expected:
                bound_to = stored.weights_sha256
                fault = f"belongs to other weights: weights_sha256 found {bound_to}, the card has {weights_sha256}"
        raise BoundFileError(f"{path}: {fault}; {cls.remedy}")

    def write(self, folder: Path) -> Path:
        """Write the file atomically, in place of an earlier one, and return its path.

        Raises:
            BoundFileError: writing failed, and an earlier file is unchanged.
        """
        path, fields = folder / self.file_name, self.model_dump(mode="json")
        fields["sha256"] = own_sha256(fields, "sha256", _INDENT)
        try:
            write_atomically(path, json_bytes(fields, _INDENT))
        except OSError as error:
            raise BoundFileError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from None
        return path


class StoredReport(Bound):
    """The report of a checkpoint: what was measured of it after it was published.

    Attributes:
        parts: what was measured, by name, such as `quality` and `price`.
    """

    file_name = REPORT_FILE

    parts: dict[str, JsonValue]


def read_report(folder: Path, card: Card) -> dict[str, JsonValue]:
    """Return the parts of a checkpoint's report, by name; empty if it has none.

    Raises:
        BoundFileError: it is damaged, or belongs to other weights.
    """
    report = StoredReport.read(folder, card.weights_sha256)
    return {} if report is None else report.parts


def add_to_report(folder: Path, card: Card, parts: Mapping[str, Any]) -> Path:
    """Write parts of a report beside the weights, in place of earlier ones of the same names; others are kept.

    A report that cannot be used is replaced.

    Raises:
        BoundFileError: writing failed; an earlier file is unchanged.
    """
    try:
        earlier = read_report(folder, card)
    except BoundFileError:
        earlier = {}
    return StoredReport(weights_sha256=card.weights_sha256, parts={**earlier, **parts}).write(folder)
