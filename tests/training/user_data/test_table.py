from pathlib import Path

import numpy as np
import pytest

from models.conditions import NamedCondition
from training.data_config import VectorsData
from training.errors import DataError
from training.user_data.read import Read
from training.user_data.rows import read_table


def read(path: Path, content: str) -> Read:
    path.write_text(content)
    return read_table(path, VectorsData(name="vectors", path=str(path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; one row per sample"),
        ("a,b\n", "has column names and no rows"),
        ("a,b\n1,2\n3\n", "line 3 has 1 columns; the first one has 2"),
        ("a,b\n\n1,2\n\n3,4,5\n", "line 5 has 3 columns"),
        ("a,b\n1,x\n", "line 2, column b is 'x'; a number is needed"),
        ("a,b\n\n1,2\n1,nan\n1,2\n", "line 4, column b is 'nan'; the first of 1 numbers not finite"),
        ("1,2\n-inf,2\nnan,4\n", "line 2, column 0 is '-inf'; the first of 2 numbers not finite"),
        ("a,b\n1,1e300\n", "line 2, column b is '1e300'; the first of 1 numbers not finite in float32"),
        ("a,b,a\n1,2,3\n", "two columns are named 'a'"),
    ],
)
def test_bad_tables_are_explained_with_the_line_that_an_editor_shows(tmp_path: Path, content: str, message: str):
    with pytest.raises(DataError, match=message):
        read(tmp_path / "bad.csv", content)


@pytest.mark.parametrize(
    ("header", "names", "units"),
    [
        ("price [EUR],rooms", ("price", "rooms"), {"price": "EUR"}),
        ("rate [1/s], share[ % ]", ("rate", "share"), {"rate": "1/s", "share": "%"}),
        ("x[0],x[1]", ("x[0]", "x[1]"), {}),
        ("speed [m/s],speed [km/h]", ("speed [m/s]", "speed [km/h]"), {}),
        ("price [EUR],price", ("price [EUR]", "price"), {}),
    ],
)
def test_a_unit_in_brackets_is_no_part_of_the_name_where_that_stays_one(
    tmp_path: Path, header: str, names: tuple[str, ...], units: dict[str, str]
):
    table = read(tmp_path / "t.csv", f"{header}\n1.5,2\n3,4\n")
    assert (tuple(table.names), dict(table.units)) == (names, units)


def test_blank_lines_blanks_and_a_byte_order_mark_do_no_harm(tmp_path: Path):
    found = read(tmp_path / "t.csv", "\ufeffa, b\n\n 1 ,2\n3,4\n")
    np.testing.assert_array_equal(found.samples, [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("content", "names", "index"),
    [
        (",x,y\n0,1.5,2\n1,3,4.5\n2,2.5,1\n", "x y", "without a name"),
        (",x,y\n7,1.5,2\n1,3,4.5\n2,2.5,1\n", "x y", "without a name"),  # shuffled
        ('"","x","y"\n"1",1.5,2\n"2",3,4.5\n"3",2.5,1\n', "x y", "without a name"),  # of R
        ("Unnamed: 0,x,y\n0,1.5,2\n1,3,4.5\n2,2.5,1\n", "x y", "Unnamed: 0"),
        (",Unnamed: 0,x,y\n0,0,1.5,2\n1,1,3,4.5\n2,2,2.5,1\n", "x y", "Unnamed: 0"),  # written twice
        ("index,x,y\n0,1.5,2\n1,3,4.5\n2,2.5,1\n", "x y", "index"),
        (",0,1\n0,1.5,2\n1,3,4.5\n2,2.5,1\n", "0 1", "without a name"),
    ],
)
def test_the_index_of_a_data_frame_is_left_out(tmp_path: Path, content: str, names: str, index: str):
    found = read(tmp_path / "t.csv", content)
    np.testing.assert_array_equal(found.samples, [[1.5, 2], [3, 4.5], [2.5, 1]])
    assert all(f"column {name} from" in found.notes[0] for name in names.split())
    assert found.notes[-1] == f"left out the first column ({index}): it numbers the rows, as a data frame's index does"


def test_an_index_that_is_asked_for_is_a_column(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("index,x\n0,1.5\n1,3\n2,2\n")
    found = read_table(path, VectorsData(name="vectors", path=str(path), columns=["index", "x"]))
    np.testing.assert_array_equal(found.samples[:, 0], [0, 1, 2])


@pytest.mark.parametrize("first", ["index,x\n5,1\n4,2\n", "n,x\n0,1\n1,2\n2,9\n"])
def test_columns_with_names_of_their_own_stay(tmp_path: Path, first: str):
    assert read(tmp_path / "t.csv", first).samples.shape[1] == 2


def test_a_column_that_counts_the_rows_or_never_changes_is_remarked(tmp_path: Path):
    (line,) = read(tmp_path / "t.csv", "n,x,c\n1,3,7\n2,1,7\n3,2,7\n").notes
    assert "column n from 1 to 3 (it counts the rows: leave it out if it is an index)" in line
    assert line.endswith("column c always 7")


@pytest.mark.parametrize("content", [",x\na,1\nb,2\n", ",x\n1,1\n1,2\n", "x,\n1,\n2,\n", ",\n1,2\n1,4\n"])
def test_columns_without_a_name_are_refused(tmp_path: Path, content: str):
    with pytest.raises(DataError, match=r"line 1, column [12] has no name|two columns are named ''"):
        read(tmp_path / "t.csv", content)


def test_numbered_columns_are_names_where_all_else_has_a_point(tmp_path: Path):
    found = read(tmp_path / "t.csv", "0,1\n0.5,1.5\n0.2,0.3\n")
    assert found.samples.shape == (2, 2)
    assert found.notes[-1] == "line 1 (0,1) was read as column names"


@pytest.mark.parametrize(
    "content", ["0,1\n1,1\n0,1\n", "0\n0.5\n0.2\n", "0,1\n0.5,0.5\n1,0\n", "2019,2020\n1.5,2.5\n3.0,1.5\n"]
)
def test_a_first_line_that_may_be_either_is_asked_about(tmp_path: Path, content: str):
    path = tmp_path / "t.csv"
    with pytest.raises(DataError, match=r"line 1 \([02].*\) may be a sample or column names; say .*--header yes"):
        read(path, content)
    for header, samples in (("yes", 2), ("no", 3)):
        config = VectorsData.model_validate({"name": "vectors", "path": str(path), "header": header})
        assert len(read_table(path, config).samples) == samples


def test_a_bad_cell_in_the_first_line_does_not_make_names_of_it(tmp_path: Path):
    with pytest.raises(DataError, match=r"line 1 \(1\.5,n/a\) has the number 1\.5.*'n/a' in column 2, which is no"):
        read(tmp_path / "t.csv", "1.5,n/a\n2.5,3\n")


@pytest.mark.parametrize("label", ["", "nan", "NaN", "NA", "<NA>", "None", "null", " "])
def test_missing_labels_are_named_by_line_and_column(tmp_path: Path, label: str):
    path = tmp_path / "t.csv"
    path.write_text(f"x,kind\n1,cat\n2,{label}\n3,dog\n")
    with pytest.raises(DataError, match=r"line 3, column kind is '.*'; the first of 1 labels that are missing"):
        read_table(path, VectorsData(name="vectors", path=str(path), label="kind"))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("1.0 2.0 1", ("1", "1.0", "2.0")),
        ("01 1 01", ("01", "1")),
        ("02139 10115 02139", ("02139", "10115")),
        ("007 7 8", ("007", "7", "8")),
        ("+1 1 2", ("+1", "1", "2")),
        ("3.10 3.1 3.1 3.10", ("3.1", "3.10")),
        ("1e3 1000 5", ("1000", "1e3", "5")),
        ("-0 0 1", ("-0", "0", "1")),
        ("-1 10 2", ("-1", "2", "10")),
        ("10 2 2", ("2", "10")),
        ("0 1 0", None),
        ("9007199254740993 9007199254740992 1", ("1", "9007199254740992", "9007199254740993")),
        ("99999999999999999999 99999999999999999998 1", ("1", "99999999999999999998", "99999999999999999999")),
        ("a 1 b", ("1", "a", "b")),
    ],
)
def test_labels_that_are_numbers_are_numbers_and_long_ones_keep_their_digits(
    tmp_path: Path, labels: str, names: tuple[str, ...] | None
):
    path = tmp_path / "t.csv"
    path.write_text("x,k\n" + "".join(f"{row},{label}\n" for row, label in enumerate(labels.split())))
    read = read_table(path, VectorsData(name="vectors", path=str(path), label="k"))
    assert isinstance(read.condition, NamedCondition)
    assert read.condition.names == names


def test_labels_that_differ_only_as_text_are_pointed_out(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("x,k\n1,7\n2,007\n3,7\n")
    notes = read_table(path, VectorsData(name="vectors", path=str(path), label="k")).notes
    assert notes[-1] == "2 classes: 007 1, 7 2; 007 and 7 are different texts, so different classes"
    path.write_text("x,k\n1,9007199254740993\n2,9007199254740992\n3,9007199254740992\n")
    notes = read_table(path, VectorsData(name="vectors", path=str(path), label="k")).notes
    assert notes[-1] == "2 classes: 9007199254740992 2, 9007199254740993 1"


def test_codes_that_become_numbers_are_pointed_out(tmp_path: Path):
    found = read(tmp_path / "t.csv", "x,zip\n0.5,02139\n0,10115\n")
    assert found.notes[-1] == "read as numbers, without their leading zeros: zip; a code is a label"
    assert found.samples[0, 1] == 2139
    assert "leading" not in "".join(read(tmp_path / "t.csv", "x,y\n0.5,0\n-0.25,0e1\n").notes)


def test_a_quantity_is_no_label(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("x,k\n1,0.53\n2,0.7\n3,2\n")
    with pytest.raises(DataError, match=r"such as 0\.53; .* is a condition, not a label"):
        read_table(path, VectorsData(name="vectors", path=str(path), label="k"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x;y\n1,5;2,5\n", "line 1 has semicolons between its columns"),
        ("x;y\n1.5;2.5\n", "line 1 has semicolons"),
        ("1,5;2,5\n1,6;2,7\n", "line 1 has semicolons"),
        ("x\ty\n1\t2\n", "line 1 has tabs"),
        ('x,y\n"1,5","2,5"\n', "line 2, column x is '1,5'; a number is needed, with a point for decimals"),
        ("x,y\n1,5,2,5\n", "line 2 has 4 columns; the first one has 2. If decimals or thousands"),
        ('x,y\n"1,234.5",2\n', "column x is '1,234.5'; a number is needed, with a point"),
        ("x,y\n1.234.567,2\n", "column x is '1.234.567'; a number is needed, with a point"),
        ("x,y\n1 234,2\n", "column x is '1 234'; a number is needed, without thousands separators"),
        ("x,y\n1_000,2\n", "column x is '1_000'; a number is needed, without thousands separators"),
        ("x,y\n1,\n", "line 2, column y is ''; a number is needed \\(there is nothing\\)"),
        ("x,y,x\n1,2,3\n", "line 1, columns 1 and 3: two columns are named 'x'"),
        ("x\n9007199254740993\n1\n", "line 2, column x is '9007199254740993'; it has more digits than float64 holds"),
        ("x\n1" + 400 * "0" + "\n1\n", "it has more digits than float64 holds"),
        ("x\n1700000000000000001\n1700000000000000300\n", "line 2, column x is '1700000000000000001'; it has more dig"),
        ("x\n1.7e18\n1.7000000000000003e18\n", r"column x of the samples is near 1\.7e\+18 and varies by only 256"),
        ("x\n0.30000000000000004\n0.3\n0.3\n", "which float64 resolves too coarsely there"),
    ],
)  # fmt: skip
def test_what_other_programs_write_is_explained(tmp_path: Path, content: str, message: str):
    with pytest.raises(DataError, match=message):
        read(tmp_path / "t.csv", content)


def test_words_may_hold_semicolons(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("x,kind\n1,cat; small\n2,dog; big\n")
    assert read_table(path, VectorsData(name="vectors", path=str(path), label="kind")).condition is not None


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str):
    (tmp_path / "t.csv").write_text("größe,y\n1,2\n", encoding=encoding)
    with pytest.raises(DataError, match=r"is not CSV text in UTF-8: .*; save it as CSV UTF-8"):
        read_table(tmp_path / "t.csv", VectorsData(name="vectors", path=str(tmp_path / "t.csv")))
