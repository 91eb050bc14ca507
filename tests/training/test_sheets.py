import numpy as np

from training.by_class import MAX_CLASSES, sheet, tiled


def test_each_class_has_its_column_in_order_and_lacking_pictures_are_empty():
    pictures = np.arange(1, 5)[:, None, None] * np.ones((4, 2, 3))
    whole = tiled(pictures, np.array([1, 0, 1, 1]), columns=3, rows=2)
    assert whole.shape == (4, 9)
    np.testing.assert_array_equal(whole[::2, ::3], [[2, 1, 0], [0, 3, 0]])


def test_colours_come_last():
    pictures = np.stack([np.full((1, 2), 0.1 * colour) for colour in range(3)])[None]
    whole = tiled(pictures, np.array([0]), columns=1, rows=1)
    assert whole.shape == (1, 2, 3)
    np.testing.assert_allclose(whole[0, 0], [0, 0.1, 0.2])


def test_a_sheet_is_a_png_and_stays_small_with_many_classes():
    source = np.random.default_rng(0)
    sets = {
        "grey": (source.random((50, 8, 8)), np.arange(50)),
        "colours": (source.random((50, 3, 8, 8)), np.arange(50)),
    }
    png = sheet(sets, classes=50)
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") < 100 * MAX_CLASSES


def test_a_sheet_of_grey_pictures_is_grey():
    png = sheet({"real": (np.random.default_rng(0).random((20, 28, 28)), np.arange(20) % 10)}, classes=10)
    assert png[25] == 0, "PNG's colour type: grey"
    assert len(png) < 40_000
