from pathlib import Path

import numpy as np
import pytest

from training.data_config import VectorsData
from training.errors import DataError
from training.own.read import Read
from training.own.table import read_table


def read(path: Path, content: str) -> Read:
    path.write_text(content)
    return read_table(path, VectorsData(name="vectors", path=str(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty; one row a sample"),
        ("a,b\n", "has names of columns and no rows"),
        ("a,b\n1,2\n3\n", "line 3 has 1 columns; the first one has 2"),
        ("a,b\n\n1,2\n\n3,4,5\n", "line 5 has 3 columns"),
        ("a,b\n1,x\n", "line 2, column b is 'x'; a number is needed"),
        ("a,b\n\n1,2\n1,nan\n1,2\n", "line 4, column b is 'nan'; the first of 1 not finite"),
        ("1,2\n-inf,2\nnan,4\n", "line 2, column 0 is '-inf'; the first of 2 not finite"),
        ("a,b\n1,1e300\n", "line 2, column b is '1e300'; the first of 1 not finite in float32"),
        ("a,b,a\n1,2,3\n", "two columns are named 'a'"),
    ],
)
def test_bad_tables_are_explained_with_the_line_that_an_editor_shows(tmp_path: Path, content: str, said: str):
    with pytest.raises(DataError, match=said):
        read(tmp_path / "bad.csv", content)


def test_blank_lines_blanks_and_a_byte_order_mark_do_no_harm(tmp_path: Path):
    found = read(tmp_path / "t.csv", "\ufeffa, b\n\n 1 ,2\n3,4\n")
    np.testing.assert_array_equal(found.samples, [[1, 2], [3, 4]])
