import gzip
import struct
from pathlib import Path

import pytest

from training.errors import DataError
from training.mnist import labels, read_labels


def written(path: Path, magic: int, count: int, content: bytes) -> Path:
    path.write_bytes(gzip.compress(struct.pack(">II", magic, count) + content))
    return path


def test_labels_are_read(tmp_path: Path):
    assert read_labels(written(tmp_path / "l.gz", 0x801, 3, bytes([7, 0, 9])), 3).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("magic", "count", "content", "match"),
    [
        (0x803, 3, b"\0\1\2", "begins with 00 00 08 03"),
        (0x801, 2, b"\0\1\2", r"promises \(2,\); it has 3 bytes"),
        (0x801, 3, b"\0\1", r"promises \(3,\); it has 2 bytes"),
        (0x801, 2, b"\0\1", r"shape \(2,\) and values up to 1; 3 labels from 0 to 9"),
        (0x801, 3, b"\0\1\x0b", "values up to 11; 3 labels from 0 to 9"),
    ],
)
def test_what_are_no_labels_is_named(tmp_path: Path, magic: int, count: int, content: bytes, match: str):
    with pytest.raises(DataError, match=match):
        read_labels(written(tmp_path / "l.gz", magic, count, content), 3)


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"gone\.gz cannot be read: No such file"):
        read_labels(tmp_path / "gone.gz", 3)
    (tmp_path / "half.gz").write_bytes(gzip.compress(bytes(100))[:20])
    with pytest.raises(DataError, match=r"half\.gz is damaged"):
        read_labels(tmp_path / "half.gz", 3)
    with pytest.raises(DataError, match="has no MNIST labels: looked for train-labels"):
        labels(tmp_path, 3, 3)
