"""Rows of numbers from a .csv file; errors name the line as an editor counts it."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data_config import VectorsData
from training.errors import DataError
from training.spaces import MAX_EXACT
from training.user_data.read import Columns, Read, checked, is_number, listed, missing

_INDEX = re.compile(r"|Unnamed: 0(?:\.\d+)?|Unnamed: 0_level_0|index|level_0")
"""Names of a first column that is the index of a data frame, possibly saved repeatedly or turned into a column."""


_CODE = re.compile(r"[+-]?0\d+", re.ASCII)


@dataclass(frozen=True)
class _Table:
    """A file's cells.

    Attributes:
        path: the file.
        header: names of the columns, from the first line or numbers from 0.
        rows: the cells below, each row as long as the header.
        lines: the line of the file in which each row ends, counted from 1.
        notes: how the first line and column were interpreted, if that was not obvious.
    """

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]
    notes: tuple[str, ...] = ()

    def labels(self, name: str) -> NDArray[np.str_]:
        """Return the cells of one column, without blanks around them; none may be missing."""
        place = self.header.index(name)
        found = np.array([row[place].strip() for row in self.rows])
        if bad := missing(found):
            raise self._wrong(
                bad[0],
                place,
                f"the first of {len(bad)} labels that are missing; fill in a class or remove such rows",
            )
        return found

    def numbers(self, names: Sequence[str]) -> Columns:
        """Return the numbers of some columns."""
        places = [self.header.index(name) for name in names]
        found = np.empty((len(self.rows), len(places)))
        for number, row in enumerate(self.rows):
            for column, place in enumerate(places):
                if not is_number(row[place]):
                    raise self._wrong(number, place, f"a number is needed{_hint(row[place])}")
                found[number, column] = float(row[place])
                if abs(found[number, column]) >= MAX_EXACT and _loses_digits(row[place].strip()):
                    raise self._wrong(
                        number, place, "it has more digits than float64 holds; subtract an offset from the column"
                    )
        with np.errstate(over="ignore"):
            bad = np.argwhere(~np.isfinite(found.astype(np.float32)))
        if len(bad):
            raise self._wrong(
                bad[0, 0], places[bad[0, 1]], f"the first of {len(bad)} numbers not finite in float32; remove such rows"
            )
        return Columns(found, names)

    def codes(self, names: Sequence[str]) -> list[str]:
        """Return a line on the columns of numbers that are written with leading zeros, as postcodes are."""
        places = {name: self.header.index(name) for name in names}
        codes = [
            name for name, place in places.items() if any(_CODE.fullmatch(row[place].strip()) for row in self.rows)
        ]
        return [f"read as numbers, without their leading zeros: {listed(codes)}; a code is a label"] if codes else []

    def _wrong(self, row: int, place: int, what: str) -> DataError:
        where = f"line {self.lines[row]}, column {self.header[place]}"
        return DataError(f"data {self.path}: {where} is {self.rows[row][place]!r}; {what}")


def read_table(path: Path, config: VectorsData) -> Read:
    """Read the columns that the recipe names.

    Raises:
        DataError: the file cannot be read, is empty, has rows of different lengths, lacks a column, or has a cell that
            is not a finite number.
    """
    table = _table(path, config)
    special = {*config.condition, config.label} - {""}
    data = config.columns or [name for name in table.header if name not in special]
    for name in (*data, *special):
        if name not in table.header:
            raise DataError(f"data {path} has no column {name!r}; it has {', '.join(table.header)}")
    if not data:
        raise DataError(f"data {path} has no column left for the samples; it has {', '.join(table.header)}")
    labels = table.labels(config.label) if config.label else None
    conditions = table.numbers(config.condition) if config.condition else None
    notes = (*table.notes, *table.codes([*data, *config.condition]))
    return replace(checked(path, table.numbers(data), labels, conditions, notes), lines=table.lines)


def _table(path: Path, config: VectorsData) -> _Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if len(row) > 1 or any(cell.strip() for cell in row):
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise DataError(f"data {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"data {path} is not CSV text in UTF-8: {error}; save it as CSV UTF-8") from None
    if not rows:
        raise DataError(f"data {path} is empty; one row per sample is needed")
    _check_separator(path, rows, lines)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(
                f"data {path}: line {line} has {len(row)} columns; the first one has {len(rows[0])}. If decimals or "
                "thousands are written with commas, use decimal points and no thousands separators"
            )
    if not _has_header(path, rows, lines[0], config):
        return _Table(path, [str(number) for number in range(len(rows[0]))], rows, lines)
    header = [cell.strip() for cell in rows[0]]
    if len(rows) == 1:
        raise DataError(f"data {path} has column names and no rows; one row per sample is needed")
    table = _without_index(
        _Table(path, header, rows[1:], lines[1:]), {*config.columns, *config.condition, config.label}
    )
    for place, name in enumerate(header, 1):
        if name in header[: place - 1]:
            first = header.index(name) + 1
            raise DataError(
                f"data {path}: line {lines[0]}, columns {first} and {place}: two columns are named {name!r}; give them "
                "different names"
            )
    for place, name in enumerate(table.header, 1 + len(header) - len(table.header)):
        if not name:
            raise DataError(f"data {path}: line {lines[0]}, column {place} has no name; name it or remove it")
    if all(map(is_number, header)):
        names = f"line {lines[0]} ({','.join(header)}) was read as column names"
        return _Table(path, table.header, table.rows, table.lines, (*table.notes, names))
    return table


def _check_separator(path: Path, rows: list[list[str]], lines: list[int]) -> None:
    """Refuse tables with another separator, which commas would cut in the wrong places."""
    for row, line in zip(rows[:2], lines, strict=False):
        for sign, name in ((";", "semicolons"), ("\t", "tabs")):
            cut = [cell.split(sign) for cell in row if sign in cell]
            if cut and (len(row) == 1 or any(all(map(is_number, parts)) for parts in cut)):
                raise DataError(
                    f"data {path}: line {line} has {name} between its columns ({','.join(row)[:40]!r}); save them with "
                    "commas, and decimals with points"
                )


def _has_header(path: Path, rows: list[list[str]], line: int, config: VectorsData) -> bool:
    """Return whether the first line has column names.

    Raises:
        DataError: it may be either, and the recipe does not say.
    """
    if config.header != "auto":
        return config.header == "yes"
    first = [cell.strip() for cell in rows[0]]
    numbers = [cell for cell in first if is_number(cell)]
    shown = ",".join(first)[:60]
    ask = "say which with --header yes or --header no (in a recipe data.header)"
    if len(numbers) < len(first):
        odd = next((cell for cell in numbers if not cell.isdecimal()), None)
        if odd is None:
            return True
        place, bad = next((place, cell) for place, cell in enumerate(first, 1) if not is_number(cell))
        raise DataError(
            f"data {path}: line {line} ({shown}) has the number {odd}, so it is not a line of names, and {bad!r} in "
            f"column {place}, which is not a number; {ask}"
        )
    # A data frame without column names numbers its columns, or has years as names. If it has floats, all have a point.
    counted = first == [str(number) for number in range(len(first))]
    whole = any(cell.strip().lstrip("+-").isdecimal() for row in rows[1:] for cell in row)
    named = len(rows) > 1 and len(set(first)) == len(first) and all(map(str.isdecimal, first))
    if not counted and (whole or not named):
        return False
    if not counted or len(first) == 1 or whole:
        raise DataError(f"data {path}: line {line} ({shown}) may be a sample or column names; {ask}")
    return True


def _without_index(table: _Table, wanted: set[str]) -> _Table:
    """Return the table without first columns that are the index of a data frame.

    Such a column has no proper name, and its cells are different whole numbers. If its name could be intended, it must
    also count the rows.
    """
    cells = [row[0].strip() for row in table.rows]
    name = table.header[0]
    if not _INDEX.fullmatch(name) or name in wanted - {""} or len(table.header) == 1:
        return table
    counts = cells in ([str(number + start) for number in range(len(cells))] for start in (0, 1))
    if not counts and (
        name in ("index", "level_0") or len(set(cells)) < len(cells) or not all(map(str.isdecimal, cells))
    ):
        return table
    note = f"left out the first column ({name or 'without a name'}): it numbers the rows, as a data frame's index does"
    rows = [row[1:] for row in table.rows]
    return _without_index(_Table(table.path, table.header[1:], rows, table.lines, (*table.notes, note)), wanted)


def _hint(cell: str) -> str:
    """Suggest what a non-numeric cell may have meant."""
    if ("," in cell or cell.count(".") > 1) and is_number(re.sub(r"[,. \u00a0\u202f']", "", cell)):
        return ", with a point for decimals and no thousands separators"
    if re.fullmatch(r"[+-]?\d+(?:[ \u00a0\u202f'_]\d{3})+(?:\.\d+)?", cell.strip()):
        return ", without thousands separators"
    return " (there is nothing)" if not cell.strip() else ""


def _loses_digits(text: str) -> bool:
    """Return whether float64 cannot represent a whole number to its last digit."""
    digits = text.lstrip("+-")
    return digits.isdecimal() and int(float(text)) != int(text)
