"""Rows of numbers from .npy, .npz and .csv files; errors name the line of a .csv as an editor counts it."""

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.conditions import NamedCondition
from training.arrays import load_arrays
from training.data_config import VectorsData
from training.errors import DataError
from training.spaces import MAX_EXACT, deviations
from training.user_data.read import LISTED, Read, classes, is_number, listed, missing

_FEW = 20
"""Rows from which on a value may be told to be far from the others."""

_COARSE = 2.0**-10
"""Largest spacing of floating-point numbers that resolves a column, as a share of the column's spread."""

_INDEX = re.compile(r"|Unnamed: 0(?:\.\d+)?|Unnamed: 0_level_0|index|level_0")
"""Names of a first column that is the index of a data frame, possibly saved repeatedly or turned into a column."""

_CODE = re.compile(r"[+-]?0\d+", re.ASCII)

_UNIT = re.compile(r"(?P<name>\S.*?)\s*\[(?!\s*\d+\s*\])(?P<unit>[^\[\]]+)\]")
"""The name of a column with its unit, as in price [EUR]; a whole number is an index, as in x[0]."""

_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}

Columns = tuple[NDArray[Any], Sequence[str]]
"""Numbers of any type, (samples, columns), and the names of the columns."""


def read_vectors(config: VectorsData) -> Read:
    """Read rows of numbers.

    Raises:
        DataError: the file is missing, damaged, of another kind, empty, or has a value that is not a finite number; the
            message names the row and column.
    """
    path = Path(config.path)
    if path.suffix.lower() not in (".npy", ".npz", ".csv", ".tsv"):
        raise DataError(f"data {path} is not a .npy, .npz, .csv or .tsv file; save your rows as one of these")
    if path.suffix.lower() in (".csv", ".tsv"):
        return read_table(path, config)
    arrays = load_arrays(path)
    if "" in arrays and (config.label or config.condition):
        raise DataError(f"data {path}: an .npy file has no labels or conditions; use an .npz with one array for each")
    labels = _take(path, arrays, config.label) if config.label else None
    for option, names, content in (("condition", config.condition, "vectors"), ("columns", config.columns, "samples")):
        if len(names) > 1:
            raise DataError(f"data.{option} is {names}; for an .npz it must name one array of {content}")
    vectors = _numbered(_take(path, arrays, config.condition[0]), config.condition[0]) if config.condition else None
    if config.columns:
        rows = _take(path, arrays, config.columns[0])
    elif len(arrays) == 1:
        rows = arrays.popitem()[1]
    else:
        raise DataError(
            f"data {path} has the arrays {', '.join(arrays)}; name the samples: --columns {next(iter(arrays))}, or in "
            f'a recipe data.columns = ["{next(iter(arrays))}"]'
        )
    return _checked(path, _numbered(rows), labels, vectors)


def _numbered(rows: NDArray[Any], alone: str = "0") -> Columns:
    """Return columns that are named by their places from 0; a single one has a name of its own."""
    width = rows.shape[1] if rows.ndim == 2 else 0
    return rows, [alone] if width == 1 else [str(place) for place in range(width)]


def _take(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"data {path} has no array {name!r} left; it has {', '.join(arrays) or 'none'}")
    return arrays.pop(name)


@dataclass(frozen=True)
class _Table:
    """A file's cells.

    Attributes:
        path: the file.
        header: names of the columns, from the first line or numbers from 0.
        rows: the cells below, each row as long as the header.
        lines: the line of the file in which each row ends, counted from 1.
        notes: how the first line and column were interpreted, if that was not obvious.
        units: units of columns by name, which the first line has in brackets.
    """

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]
    notes: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def labels(self, name: str) -> NDArray[np.str_]:
        """Return the cells of one column, without blanks around them; none may be missing."""
        place = self.header.index(name)
        labels = np.array([row[place].strip() for row in self.rows])
        if bad := missing(labels):
            raise self._wrong(
                bad[0], place, f"the first of {len(bad)} labels that are missing; fill in a class or remove such rows"
            )
        return labels

    def numbers(self, names: Sequence[str]) -> Columns:
        """Return the numbers of some columns."""
        places = [self.header.index(name) for name in names]
        numbers = np.empty((len(self.rows), len(places)))
        for line, row in enumerate(self.rows):
            for column, place in enumerate(places):
                if not is_number(row[place]):
                    raise self._wrong(line, place, f"a number is needed{_hint(row[place])}")
                numbers[line, column] = value = float(row[place])
                whole = abs(value) >= MAX_EXACT and row[place].strip().lstrip("+-").isdecimal()
                if whole and Decimal(row[place].strip()) != Decimal(value):
                    raise self._wrong(
                        line, place, "it has more digits than float64 holds; subtract an offset from the column"
                    )
        with np.errstate(over="ignore"):
            bad = np.argwhere(~np.isfinite(numbers.astype(np.float32)))
        if len(bad):
            raise self._wrong(
                bad[0, 0], places[bad[0, 1]], f"the first of {len(bad)} numbers not finite in float32; remove such rows"
            )
        return numbers, names

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
    return replace(_checked(path, table.numbers(data), labels, conditions, notes), lines=table.lines, units=table.units)


def _table(path: Path, config: VectorsData) -> _Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    separator = "\t" if path.suffix.lower() == ".tsv" and config.separator == "," else config.separator
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
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
    _check_separator(path, rows, lines, separator)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(
                f"data {path}: line {line} has {len(row)} columns; the first one has {len(rows[0])}. If decimals or "
                "thousands are written with commas, use decimal points and no thousands separators"
            )
    if not _has_header(path, rows, lines[0], config):
        return _Table(path, [str(number) for number in range(len(rows[0]))], rows, lines)
    header, units = _names_and_units(rows[0])
    if len(rows) == 1:
        raise DataError(f"data {path} has column names and no rows; one row per sample is needed")
    table = _without_index(
        _Table(path, header, rows[1:], lines[1:], units=units), {*config.columns, *config.condition, config.label}
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
        note = f"line {lines[0]} ({','.join(header)}) was read as column names"
        return replace(table, notes=(*table.notes, note))
    return table


def _names_and_units(cells: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the names of the columns, and the units of those that have one; brackets stay where names need them."""
    parts = [_UNIT.fullmatch(cell.strip()) for cell in cells]
    names = [part["name"] if part else cell.strip() for part, cell in zip(parts, cells, strict=True)]
    count = Counter(names)
    units = {part["name"]: part["unit"].strip() for part in parts if part and count[part["name"]] == 1}
    return [name if name in units else cell.strip() for name, cell in zip(names, cells, strict=True)], units


def _check_separator(path: Path, rows: list[list[str]], lines: list[int], separator: str) -> None:
    """Refuse tables with another separator, which this one would cut in the wrong places."""
    for row, line in zip(rows[:2], lines, strict=False):
        for sign, name in _SEPARATORS.items():
            cut = [cell.split(sign) for cell in row if sign in cell and sign != separator]
            whole = sign != "," and any(all(map(is_number, parts)) for parts in cut)  # a comma may be a decimal's
            if cut and (len(row) == 1 or whole):
                option = "tab" if sign == "\t" else f"'{sign}'"
                raise DataError(
                    f"data {path}: line {line} has {name} between its columns ({separator.join(row)[:40]!r}); say so "
                    f"with --sep {option} (in a recipe data.separator), and write decimals with points"
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


def _without_index(table: _Table, chosen: set[str]) -> _Table:
    """Return the table without first columns that are the index of a data frame, unless they were chosen by name.

    Such a column has no proper name, and its cells are different whole numbers. If its name could be intended, it must
    also count the rows.
    """
    cells = [row[0].strip() for row in table.rows]
    name = table.header[0]
    if not _INDEX.fullmatch(name) or name in chosen - {""} or len(table.header) == 1:
        return table
    counts = cells in ([str(number + start) for number in range(len(cells))] for start in (0, 1))
    if not counts and (
        name in ("index", "level_0") or len(set(cells)) < len(cells) or not all(map(str.isdecimal, cells))
    ):
        return table
    note = f"left out the first column ({name or 'without a name'}): it numbers the rows, as a data frame's index does"
    rows = [row[1:] for row in table.rows]
    return _without_index(replace(table, header=table.header[1:], rows=rows, notes=(*table.notes, note)), chosen)


def _hint(cell: str) -> str:
    """Suggest what a non-numeric cell may have meant."""
    if ("," in cell or cell.count(".") > 1) and is_number(re.sub(r"[,. \u00a0\u202f']", "", cell)):
        return ", with a point for decimals and no thousands separators"
    if re.fullmatch(r"[+-]?\d+(?:[ \u00a0\u202f'_]\d{3})+(?:\.\d+)?", cell.strip()):
        return ", without thousands separators"
    return " (there is nothing)" if not cell.strip() else ""


def _checked(
    path: Path, samples: Columns, labels: NDArray[Any] | None, vectors: Columns | None, notes: tuple[str, ...] = ()
) -> Read:
    """Check the shapes and numbers of what was read.

    Raises:
        DataError: the shapes do not match, or a number cannot be represented.
    """
    if labels is not None and vectors is not None:
        raise DataError(f"data {path}: label and condition are both given; a model takes one of them")
    rows, names = _numbers(path, "the samples", samples), tuple(samples[1])
    notes = (f"read {len(rows):,} rows from {path}: {_ranges(rows, names)}", *notes)
    if labels is not None:
        if labels.shape != (len(rows),):
            raise DataError(f"data {path}: labels have shape {labels.shape}; one per sample is needed, ({len(rows)},)")
        for place in missing(labels)[:1]:
            raise DataError(
                f"data {path}: the label of sample {place} (counted from 0) is missing: it is {labels[place].item()!r}"
            )
        condition, numbers, line = classes(path, labels)
        return Read(rows, condition, numbers, (*notes, line), names)
    if vectors is None:
        return Read(rows, notes=notes, names=names)
    conditions = _numbers(path, "the conditions", vectors)
    if len(conditions) != len(rows):
        raise DataError(f"data {path}: {len(conditions)} conditions for {len(rows)} samples; one each is needed")
    constant = [name for name, column in zip(vectors[1], conditions.T, strict=True) if column.min() == column.max()]
    if constant:
        notes = (*notes, f"conditions that never change, so that samples cannot follow them: {', '.join(constant)}")
    return Read(rows, NamedCondition.vector(conditions.shape[1]), conditions, notes, names, tuple(vectors[1]))


def _numbers(path: Path, what: str, columns: Columns) -> NDArray[np.float64]:
    """Return the columns as float64, checked: finite, whole numbers exact, and each column resolved."""
    rows, names = columns
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "iufb":
        raise DataError(
            f"data {path}: {what} are {rows.dtype} of shape {rows.shape}; numbers of shape (samples, columns) are "
            "needed, both at least 1"
        )
    if rows.dtype.kind in "iu":
        why = "is beyond 2^53, where float64 drops digits; subtract an offset from the column"
        _refuse(path, what, rows, (rows > MAX_EXACT) | (rows < -MAX_EXACT), why)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(rows.astype(np.float32))
    _refuse(path, what, rows, bad, "is not finite in float32; remove such rows")
    numbers = rows.astype(np.float64)
    for name, column in zip(names, numbers.T, strict=True):
        spread, most = float(column.max() - column.min()), float(np.abs(column).max())
        if spread > 0 and float(np.spacing(most)) > _COARSE * spread:
            raise DataError(
                f"data {path}: column {name} of {what} is near {column[0]:.17g} and varies by only {spread:g}, which "
                "float64 resolves too coarsely there; subtract an offset before you save it"
            )
    return numbers


def _refuse(path: Path, what: str, rows: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    """Raise a DataError that names the first of the bad numbers, if there are any."""
    places = np.argwhere(bad)
    if len(places):
        row, column = places[0]
        raise DataError(
            f"data {path}: {what} have {len(places)} bad numbers, the first {rows[row, column]} in sample {row}, "
            f"column {column} (counted from 0): it {why}"
        )


def _ranges(rows: NDArray[np.float64], names: Sequence[str]) -> str:
    """Describe the range of each column, and point out those that are probably not data."""
    parts, noted = [], []
    for place, (name, column) in enumerate(zip(names, rows.T, strict=True)):
        low, high = column.min(), column.max()
        if low == high:
            part = f"column {name} always {low:.15g}"
        else:
            most = max(abs(low), abs(high))
            digits = min(17, max(6, 3 + math.ceil(math.log10(most) - math.log10(high - low))))  # to tell them apart
            part = f"column {name} from {low:.{digits}g} to {high:.{digits}g}"
        if len(column) > 2 and low in (0, 1) and np.array_equal(column, np.arange(len(column)) + low):
            part += " (it counts the rows: leave it out if it is an index)"
        (parts if place < LISTED or not part.endswith(")") else noted).append(part)
    more = f", and {len(parts) + len(noted) - LISTED} more" if len(parts) + len(noted) > LISTED else ""
    return ", ".join(parts[:LISTED]) + more + "".join(f"; {part}" for part in noted)


def outliers(rows: NDArray[np.float64], names: Sequence[str], lines: Sequence[int], advice: str) -> list[str]:
    """Return a line on each column of rows (n, columns) in which a few values determine the standard deviation.

    These are the hundredth of the rows that is furthest from the median, or all rows with the furthest value, which may
    stand for "missing". The column is named if it has less than a third of its standard deviation without them.

    Args:
        rows: the rows.
        names: names of the columns.
        lines: see `Read`.
        advice: what to do about it, after a semicolon.
    """
    if len(rows) < _FEW:
        return []
    remarks = []
    for name, column in zip(names, rows.T, strict=True):
        off = np.abs(column - np.median(column))
        first = int(off.argmax())
        hundredth = np.argsort(-off, kind="stable")[: max(1, len(rows) // 100)]
        for far in (hundredth, np.flatnonzero(column == column[first])):
            near = float(deviations(np.delete(column, far)[:, None])[0]) if len(far) < len(column) else 0.0
            if 0 < 3 * near < (whole := float(deviations(column[:, None])[0])):
                where = f"line {lines[first]}" if lines else f"sample {first} (counted from 0)"
                without = "it" if len(far) == 1 else f"the {len(far):,} furthest values"
                remarks.append(
                    f"column {name} is {column[first]:.15g} in {where}: the standard deviation is {whole:.3g}, and "
                    f"{near:.3g} without {without}; {advice}"
                )
                break
    return remarks[:LISTED]
