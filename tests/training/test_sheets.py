import io

import numpy as np
from PIL import Image

from training.by_class import MAX_CLASSES, sheet


def _pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def test_each_class_has_its_column_in_order_and_lacking_pictures_are_crossed():
    pictures = np.array([0.2, 0.4, 0.6, 0.8])[:, None, None] * np.ones((4, 8, 8))
    drawn = _pixels(sheet({"real": (pictures, np.array([1, 0, 1, 1]))}, classes=3))
    side = (drawn.shape[1] - 2) // 3  # of a picture and the gap beside it
    middle = drawn[2 + side // 4 :: side, 2 + side // 2 :: side]
    np.testing.assert_array_equal(middle[:, :2], [[102, 51], [middle[1, 0], 153]])
    assert len({middle[1, 0], *middle[:, 2]}) == 1, "the boxes in place of those that lack"


def test_sheets_stay_small_with_many_classes():
    source = np.random.default_rng(0)
    png = sheet({"colours": (source.random((50, 3, 8, 8)), np.arange(50))}, classes=50)
    assert _pixels(png).shape[2] == 3
    assert _pixels(png).shape[1] < 100 * MAX_CLASSES


def test_a_sheet_of_grey_pictures_is_grey_and_has_a_block_for_each_set():
    pictures = (np.random.default_rng(0).random((20, 28, 28)), np.arange(20) % 10)
    one, two = (
        _pixels(sheet(sets, classes=10)) for sets in ({"real": pictures}, {"real": pictures, "drawn": pictures})
    )
    assert one.ndim == 2
    assert two.shape == (2 * one.shape[0] - 2, one.shape[1])


def test_of_large_pictures_a_sheet_has_fewer():
    pictures = (np.zeros((40, 512, 512), np.float32), np.arange(40) % 20)
    assert _pixels(sheet(dict.fromkeys("abcde", pictures), classes=20)).shape == (5 * 514 + 2, 12 * 514 + 2)
