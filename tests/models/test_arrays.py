"""Arrays in files of NumPy: what is damaged is a ValueError, whatever its bytes."""

import io
import random
from pathlib import Path

import numpy as np
import pytest

from models.arrays import load_array, load_arrays

A, B = np.arange(12.0).reshape(3, 4), np.ones(3, np.float32)


def test_one_array_or_several_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    np.savez(tmp_path / "ab.npz", a=A, b=B)
    one, several = load_array(tmp_path / "a.npy"), load_arrays(tmp_path / "ab.npz")
    assert np.array_equal(one, A)
    assert one.flags.writeable
    assert isinstance(several, dict)
    assert np.array_equal(several["b"], B)
    with pytest.raises(ValueError, match="holds several arrays"):
        load_array(tmp_path / "ab.npz")
    with pytest.raises(FileNotFoundError):
        load_array(tmp_path / "none.npy")


def test_a_header_that_claims_more_than_the_file_has_takes_no_memory(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 3)})
    (tmp_path / "a.npy").write_bytes(file.getvalue() + bytes(64))
    with pytest.raises(ValueError, match="mmap length is greater"):
        load_array(tmp_path / "a.npy")


@pytest.mark.filterwarnings("ignore")  # numpy warns of some damaged headers
@pytest.mark.parametrize("archive", [False, True])
def test_whatever_bytes_are_damaged_it_is_read_or_a_value_error(tmp_path: Path, archive: bool) -> None:
    content, draw, refused = io.BytesIO(), random.Random(0), 0
    if archive:
        np.savez(content, a=A, b=B)
    else:
        np.save(content, A)
    file = tmp_path / "a"
    for _ in range(400):
        damaged = bytearray(content.getvalue())
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(min(len(damaged), 128))] = draw.choice(b"'()[]{},:<>0129fiOU\n\0\xff")
        file.unlink(missing_ok=True)  # the one before may still be mapped
        file.write_bytes(damaged)
        try:
            load_arrays(file)
        except ValueError:
            refused += 1
    assert refused > 100
