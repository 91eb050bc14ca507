import struct
from pathlib import Path

import numpy as np
import pytest

from training.arrays import read_idx
from training.errors import DataError


def test_bytes_of_any_shape_are_read_and_torn_files_refused(tmp_path: Path):
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "p").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">III", 5, 4, 3) + pixels.tobytes())
    np.testing.assert_array_equal(read_idx(tmp_path / "p"), pixels)
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes()[:-1])
    with pytest.raises(DataError, match="it has 59 bytes"):
        read_idx(tmp_path / "p")
    (tmp_path / "p").write_bytes(b"")
    with pytest.raises(DataError, match="begins with nothing"):
        read_idx(tmp_path / "p")
