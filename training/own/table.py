"""Rows of numbers from a .csv file; what is wrong is told with its line, as an editor counts it."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data_config import VectorsData
from training.errors import DataError
from training.own.read import Read, checked


@dataclass(frozen=True)
class _Table:
    """A file's cells.

    Attributes:
        path: the file.
        header: names of the columns, by the first line or numbers from 0.
        rows: the cells below, each row as long as the header.
        lines: the line of the file in which each row ends, counted from 1.
    """

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def texts(self, name: str) -> NDArray[np.str_]:
        """The cells of one column, without blanks around them."""
        place = self.header.index(name)
        return np.array([row[place].strip() for row in self.rows])

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The numbers of some columns, (rows, columns)."""
        places = [self.header.index(name) for name in names]
        found = np.empty((len(self.rows), len(places)))
        for number, row in enumerate(self.rows):
            for column, place in enumerate(places):
                if not _is_number(row[place]):
                    raise self._wrong(number, place, "a number is needed")
                found[number, column] = float(row[place])
        with np.errstate(over="ignore"):
            bad = np.argwhere(~np.isfinite(found.astype(np.float32)))
        if len(bad):
            raise self._wrong(
                bad[0, 0], places[bad[0, 1]], f"the first of {len(bad)} not finite in float32; take such rows out"
            )
        return found

    def _wrong(self, row: int, place: int, what: str) -> DataError:
        where = f"line {self.lines[row]}, column {self.header[place]}"
        return DataError(f"data {self.path}: {where} is {self.rows[row][place]!r}; {what}")


def read_table(path: Path, config: VectorsData) -> Read:
    """Read the columns that are asked for.

    Raises:
        DataError: the file cannot be read, is empty, has rows of different lengths, lacks a column, or has a cell that
            is no finite number.
    """
    table = _table(path)
    special = {*config.condition, config.label} - {""}
    data = config.columns or [name for name in table.header if name not in special]
    for name in (*data, *special):
        if name not in table.header:
            raise DataError(f"data {path} has no column {name!r}; it has {', '.join(table.header)}")
    if not data:
        raise DataError(f"data {path} has no column left for the samples; it has {', '.join(table.header)}")
    labels = table.texts(config.label) if config.label else None
    return checked(path, table.numbers(data), labels, table.numbers(config.condition) if config.condition else None)


def _table(path: Path) -> _Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"data {path} is no CSV text: {error}") from None
    if not rows:
        raise DataError(f"data {path} is empty; one row a sample is needed")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(f"data {path}: line {line} has {len(row)} columns; the first one has {len(rows[0])}")
    if all(_is_number(cell) for cell in rows[0]):
        return _Table(path, [str(number) for number in range(len(rows[0]))], rows, lines)
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"data {path}: two columns are named {twice!r}; give each a name of its own")
    if len(rows) == 1:
        raise DataError(f"data {path} has names of columns and no rows; one row a sample is needed")
    return _Table(path, header, rows[1:], lines[1:])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
