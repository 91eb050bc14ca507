"""Conditions that differ between the samples of a bulk job: a table, or arrays (`fleet.bulk.arrays`).

Each row of the table has a condition and the number of samples to draw for it.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.bulk.spec import digest_of
from fleet.errors import UsageError

_NEEDS = "a table of conditions needs the columns condition and count"


class Given(Protocol):
    """Conditions of the samples of a job that are not part of its request."""

    @property
    def total(self) -> int:
        """The number of samples."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of the values that differ from sample to sample, for one of them."""
        ...

    def of(self, first: int, rows: int) -> dict[str, Any]:
        """Return the members of a sample request that hold the conditions of consecutive samples."""
        ...


@dataclass(frozen=True)
class Table:
    """Conditions in the order of their samples.

    Attributes:
        conditions: labels, names of labels or vectors, as in a sample request.
        counts: number of samples for each, at least 1.
    """

    conditions: tuple[Any, ...]
    counts: tuple[int, ...]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    @property
    def total(self) -> int:
        """The number of samples."""
        return int(self._ends[-1])

    row_bytes = 0
    """One sample has none for itself: equal conditions are stored once."""

    @property
    def digest(self) -> str:
        """SHA-256 of the table."""
        return digest_of([self.conditions, self.counts])

    def of(self, first: int, rows: int) -> dict[str, Any]:
        """Return the member of a sample request that holds the conditions of consecutive samples, one for each."""
        places = np.searchsorted(self._ends, np.arange(first, first + rows), side="right")
        return {"condition": [self.conditions[place] for place in places.tolist()]}

    def to_json(self) -> bytes:
        """Return the table as it is stored with the shards."""
        return json.dumps({"condition": self.conditions, "count": self.counts}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Table:
        """Read what `to_json` wrote."""
        found = json.loads(content)
        return cls(tuple(found["condition"]), tuple(found["count"]))

    @classmethod
    def read(cls, name: str, content: bytes) -> Table:
        """Read a user's table, Parquet or CSV by its name; vectors in CSV are JSON lists.

        Raises:
            UsageError: the table is malformed, or a count is not an integer of at least 1.
        """
        conditions, counts = _parquet(name, content) if name.endswith(".parquet") else _csv(name, content)
        for line, count in enumerate(counts):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"{name}: row {line} (counted from 0) has the count {count!r}; it must be at least 1")
        if not conditions:
            raise UsageError(f"{name}: has no rows; {_NEEDS}")
        return cls(tuple(conditions), tuple(counts))


def _parquet(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
        return table["condition"].to_pylist(), table["count"].to_pylist()
    except (KeyError, pyarrow.ArrowException) as error:
        raise UsageError(f"{name}: {str(error).splitlines()[0]}; {_NEEDS}") from None


def _csv(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))
        return [cell(row["condition"]) for row in rows], [cell(row["count"]) for row in rows]
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name}: {error} is missing or cannot be read; {_NEEDS}") from None


def cell(text: str | None) -> Any:
    """Parse a cell: JSON, such as a number or a list, or else a name."""
    try:
        return json.loads(text or "")
    except ValueError:
        return (text or "").strip()
