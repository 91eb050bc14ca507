"""Pictures of data: sheets, scatter plots, and shapes that cannot be drawn."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.pictures import SIDE, PictureError, TooManyError, check, draw, max_bytes

RNG = np.random.default_rng(0)


def _pixels(data: Any, **options: Any) -> np.ndarray[Any, Any]:
    content = draw(np.asarray(data), **options)
    assert len(content) <= max_bytes(len(data), np.shape(data)[1:])
    return np.asarray(Image.open(io.BytesIO(content)))


def test_each_pixel_of_a_sheet_is_its_value() -> None:
    pictures = RNG.integers(0, 256, (5, 8, 8))
    sheet = _pixels(pictures, limits=(0, 255))
    # three columns and two rows of 8 x 8 pictures, each enlarged 8 times, with 2 pixels between
    assert sheet.shape == (2 * 66 + 2, 3 * 66 + 2)
    for k, picture in enumerate(pictures):
        top, left = k // 3 * 66 + 2, k % 3 * 66 + 2
        np.testing.assert_array_equal(sheet[top : top + 64 : 8, left : left + 64 : 8], picture)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_limits_are_black_and_white(dtype: type) -> None:
    pictures = np.array([[[-1.0, -0.5], [0.0, 1.0]]], dtype=dtype)
    sheet = _pixels(pictures, limits=(-0.5, 1))
    assert sorted(set(sheet[2:-2, 2:-2].ravel().tolist())) == [0, 85, 255]


@pytest.mark.parametrize("shape", [(3, 6, 5), (6, 5, 3)])
def test_colours_come_first_or_last(shape: tuple[int, ...]) -> None:
    data = np.zeros((1, *shape))
    (data[0, 1] if shape[0] == 3 else data[0, :, :, 1])[...] = 1
    sheet = _pixels(data, limits=(0, 1))
    assert sheet[10, 10].tolist() == [0, 255, 0]


@pytest.mark.parametrize("shape", [(6, 5), (1, 6, 5), (6, 5, 1)])
def test_one_channel_is_grey(shape: tuple[int, ...]) -> None:
    assert _pixels(RNG.random((3, *shape))).ndim == 2


def test_a_picture_that_is_not_finite_changes_no_other() -> None:
    pictures = RNG.random((4, 8, 8))
    whole = _pixels(pictures, limits=(0, 1))
    pictures[3, 0, 0] = np.nan
    broken = _pixels(pictures, limits=(0, 1))
    half = len(whole) // 2
    np.testing.assert_array_equal(whole[:half], broken[:half])
    assert not np.array_equal(whole[half:, half:], broken[half:, half:])


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -3.0, 1e300])
def test_sheets_without_any_range(value: float) -> None:
    assert _pixels(np.full((2, 4, 4), value)).dtype == np.uint8


def test_points_stand_where_they_are() -> None:
    image = _pixels([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    assert image.shape == (SIDE, SIDE, 3)
    blue = (image[:, :, 2].astype(int) - image[:, :, 0]) > 100
    rows, columns = np.nonzero(blue)
    half_row, half_column = (rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2
    assert not blue[int(half_row)].any()
    assert {(r > half_row, c > half_column) for r, c in zip(rows, columns, strict=True)} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


def test_many_points_in_a_place_are_darker_than_one() -> None:
    image = _pixels(np.concatenate([np.zeros((500, 2)), np.full((500, 2), 5.0), [[0.0, 5.0]]]))
    brightness = image.astype(int).sum(2)
    left, right = brightness[:, : SIDE // 2], brightness[:, SIDE // 2 :]
    upper_left = left[: SIDE // 2][10:-10, 60:]
    assert left[SIDE // 2 : -60].min() < upper_left.min() - 100
    assert right[: SIDE // 2].min() < upper_left.min() - 100


def test_far_points_do_not_hide_the_others() -> None:
    points = RNG.normal(size=(256, 2))
    alone = _pixels(points)
    points[3], points[5] = 1e25, np.nan
    assert (_pixels(points)[60:-60, 60:-60] < 250).sum() > 0.5 * (alone[60:-60, 60:-60] < 250).sum()


@pytest.mark.parametrize(
    "points",
    [
        [[2.0, 3.0]],
        [[0.0, 0.0]],
        [[np.nan, 0.0]],
        [[np.inf, -np.inf], [1.0, 1.0]],
        [[1e300, 1e300]],
        [[1e-300, 0.0], [0.0, 0.0]],
        [[5.0, 5.0]] * 99 + [[7.0, 5.0]],
        [[1e6, 1.0], [1e6 + 1e-3, 1.0]],
    ],
)
@pytest.mark.filterwarnings("error")
def test_degenerate_points(points: Any) -> None:
    assert _pixels(points).shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("centre", [1e9, -1e9, 1e6])
def test_points_far_from_zero_are_spread_like_those_near_it(centre: float) -> None:
    near = np.random.default_rng(0).normal(size=(300, 2))
    inner = (slice(24, 596), slice(56, 616))  # without frame and labels
    dark = [(_pixels(near + at)[inner] < 200).any(2) for at in (0.0, centre)]
    assert dark[1].sum() == pytest.approx(dark[0].sum(), rel=0.05)
    rows, columns = np.nonzero(dark[1])
    assert min(np.ptp(rows), np.ptp(columns)) > 300


def test_the_same_data_gives_the_same_bytes() -> None:
    points = RNG.normal(size=(1000, 2)).astype(np.float32)
    assert draw(points) == draw(points)


@pytest.mark.parametrize("shape", [(3,), (64,), (2, 3, 4), (1, 5), (4, 4, 4), (2, 2, 2, 2), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PictureError, match="cannot be drawn: a picture needs"):
        draw(np.zeros((2, *shape)))


def test_too_many_pictures_are_refused() -> None:
    check(167_772, (8, 8))
    with pytest.raises(TooManyError, match="num_samples = 167773 is over the 167772 pictures of 8 x 8"):
        check(167_773, (8, 8))


@pytest.mark.parametrize("samples", [1, 2, 7, 300])
@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (3, 32, 32), (2, 300), (700, 900)])
def test_sizes_hold(samples: int, shape: tuple[int, ...]) -> None:
    """Noise does not compress, so this is the largest possible sheet."""
    try:
        check(samples, shape)
    except TooManyError:
        return
    _pixels(RNG.integers(0, 256, (samples, *shape), dtype=np.uint8), limits=(0, 255))
