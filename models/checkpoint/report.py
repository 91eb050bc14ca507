"""The report of a checkpoint, `report.json`: what was measured of it after it was published.

It lies beside the card, whose hash is that of the checkpoint and must not change when a model is measured again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from models.checkpoint.bound import Bound, BoundFile
from models.checkpoint.card import Card

REPORT_FILE = "report.json"


class ReportError(Exception):
    """A report cannot be read, trusted or written; the message names the file and the fault."""


class StoredReport(Bound):
    """The report of a checkpoint.

    Attributes:
        parts: what was measured, by name, such as `quality` and `price`.
    """

    parts: dict[str, JsonValue]


_FILE = BoundFile(REPORT_FILE, StoredReport, ReportError, "measure it again")


def read_report(folder: Path, card: Card) -> dict[str, JsonValue]:
    """Return the parts of a checkpoint's report, by name; empty if it has none.

    Raises:
        ReportError: it is damaged, or belongs to other weights.
    """
    report = _FILE.read(folder, card.weights_sha256)
    return {} if report is None else report.parts


def add_to_report(folder: Path, card: Card, parts: Mapping[str, Any]) -> Path:
    """Write parts of a report beside the weights, in place of earlier ones of the same names; others are kept.

    A report that cannot be used is replaced.

    Raises:
        ReportError: writing failed; an earlier file is unchanged.
    """
    try:
        earlier = read_report(folder, card)
    except ReportError:
        earlier = {}
    return _FILE.write(folder, StoredReport(weights_sha256=card.weights_sha256, parts={**earlier, **parts}))
