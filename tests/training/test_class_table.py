from pathlib import Path

import numpy as np
import pytest

from models.decoder import Decoder
from training.by_class import ClassRow, head, line, write
from training.errors import TrainingError

NAMES = ["cat", "elephant", "dog"]
ROWS = [
    ClassRow("real data", 30, 0.95, [1.0, None, 0.9], 0.8, [0.4, 0.3, 0.3]),
    ClassRow("rk4-2, no condition", 9, None, [None] * 3, 0.5, [1.0, 0.0, 0.0], 8.0, 1),
]


def test_a_line_has_every_share_under_its_name():
    title, first = head(NAMES), line(ROWS[0])
    assert title.split() == ["samples", "count", "own", "class", "over", "0.9", "cat", "elep", "dog"]
    assert first.split() == ["real", "data", "30", "95.0%", "80.0%", "100%", "-", "90%"]
    assert line(ROWS[1]).split()[-4:] == ["50.0%", "-", "-", "-"]
    assert len(line(ROWS[1])) == len(first) == len(title)


def test_pictures_have_a_sheet_and_rows_of_numbers_have_none(tmp_path: Path):
    samples = {"real": (np.zeros((3, 4)), np.arange(3))}
    for name, decoder in (("flat", Decoder.identity((4,))), ("square", Decoder.identity((4,), (2, 2)))):
        (tmp_path / name).mkdir()
        write(ROWS, NAMES, tmp_path / name, decoder, samples)
    assert (tmp_path / "flat" / "by-class.csv").read_text().splitlines()[2] == '"rk4-2, no condition",9,,0.5,8.0,1,,,'
    assert (
        (tmp_path / "flat" / "by-class.csv").read_text().startswith("samples,count,own_class,over_0.9,nfe,failed,cat,")
    )
    assert {file.name for file in (tmp_path / "flat").iterdir()} == {"by-class.csv"}
    assert (tmp_path / "square" / "by-class.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_is_gone_is_said(tmp_path: Path):
    with pytest.raises(TrainingError, match=r"gone/by-class\.csv: cannot be written: No such file"):
        write(ROWS, NAMES, tmp_path / "gone", Decoder.identity((4,)), {})
