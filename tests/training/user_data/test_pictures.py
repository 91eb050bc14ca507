import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.conditions import NamedCondition
from training.data_config import ImagesData
from training.errors import DataError
from training.user_data.pictures import read_images


def images(path: Path, **fields: Any) -> ImagesData:
    return ImagesData(name="images", path=str(path), **fields)


def test_pictures_of_a_folder_with_their_classes(pictures: Path):
    read = read_images(images(pictures, conditional=True))
    assert read.samples.shape == (12, 1, 8, 4)
    assert read.condition == NamedCondition.label(classes=2, names=("left", "right"))
    assert read_images(images(pictures, colour=True)).samples.shape == (12, 3, 8, 4)


def test_bad_pictures_are_explained(pictures: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no pictures"):
        read_images(images(tmp_path / "empty"))
    Image.new("L", (9, 9)).save(pictures / "odd.png")
    with pytest.raises(DataError, match=r"odd.png is 9 x 9 pixels|is 4 x 8 pixels"):
        read_images(images(pictures))
    (pictures / "odd.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"odd.png is not a readable picture"):
        read_images(images(pictures))


def test_idx_files_with_their_labels(tmp_path: Path):
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "p").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">III", 5, 4, 3) + pixels.tobytes())
    (tmp_path / "l").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes([3, 1, 3, 1, 1]))
    read = read_images(images(tmp_path / "p", conditional=True, labels=str(tmp_path / "l")))
    assert np.array_equal(read.samples[:, 0] * 255, pixels)
    assert read.condition == NamedCondition.label(classes=2, names=("1", "3"))
    with pytest.raises(DataError, match=r"needs data\.labels"):
        read_images(images(tmp_path / "p", conditional=True))
    with pytest.raises(DataError, match=r"5 pictures need \(5,\)"):
        read_images(images(tmp_path / "p", conditional=True, labels=str(tmp_path / "p")))
