"""Pictures of results, drawn by matplotlib; Pillow reads them back."""

from __future__ import annotations

import base64
import io
import re
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pathline import Client
from pathline._plot import MAX_PIXELS, draw
from PIL import Image

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def test_points_lie_where_they_belong() -> None:
    plot = pixels(draw(np.array([[-1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])))
    blue = plot[:, :, 2].astype(int) - plot[:, :, 0] > 60
    rows, columns = blue.nonzero()
    half = (rows.min() + rows.max()) // 2, (columns.min() + columns.max()) // 2
    assert blue[half[0] :, : half[1]].any()  # low and left
    assert blue[: half[0], half[1] :].any()
    assert blue[half[0] :, half[1] :].any()
    assert not blue[: half[0], : half[1]].any()


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((1, 2)),
        np.full((3, 2), 7e8),
        np.full((2, 2), np.nan),
        np.array([[np.inf, 0], [1, 2]]),
        normal(50, 2) * 1e-9,
        normal(50, 2) * 1e25,
        normal(50, 2).astype(np.float16),
        np.concatenate([normal(50, 2), [[1e300, -1e300]]]),
        np.arange(20).reshape(10, 2),
    ],
    ids=["one", "equal", "nan", "infinite", "tiny", "huge", "half", "outlier", "integers"],
)
def test_any_points_can_be_drawn(points: np.ndarray) -> None:
    assert pixels(draw(points)).shape == (480, 480, 3)


def test_one_far_away_does_not_squeeze_the_others() -> None:
    near = normal(200, 2)
    with_outlier = pixels(draw(np.concatenate([near, [[1e6, 1e6]]])))
    assert (with_outlier[:, :, 2].astype(int) - with_outlier[:, :, 0] > 40).sum() > 1000


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (8, 8, 1), (3, 8, 6), (8, 6, 3)])
def test_sheets(shape: tuple[int, ...]) -> None:
    sheet = pixels(draw(normal(5, *shape)))
    assert (sheet[:, :, :1] == sheet).all() == (3 not in shape)
    assert sheet.min() < 10
    assert sheet.max() > 245


def test_pictures_keep_their_order_and_values() -> None:
    samples = np.stack([np.full((8, 8), value) for value in (0.0, 1.0, np.nan)])
    sheet = pixels(draw(samples))[:, :, 0]
    tile = sheet.shape[0] // 2, sheet.shape[1] // 2
    centres = [sheet[row * tile[0] + tile[0] // 2, column * tile[1] + tile[1] // 2] for row, column in np.ndindex(2, 2)]
    assert centres == [0, 255, 160, 236]


@pytest.mark.parametrize("shape", [(3,), (), (2, 2, 2, 2), (1, 5), (4, 8, 8)])
def test_other_shapes_are_refused_with_what_can_be_done(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"cannot be drawn: .*; use \.npz, \.npy or \.csv"):
        draw(np.zeros((2, *shape)))


def test_a_sheet_has_a_limit() -> None:
    most = MAX_PIXELS // (66 * 66)
    with pytest.raises(ValueError, match=f"ask for at most {most}"):
        draw(np.zeros((most + 1, 64, 64), np.uint8))
    with pytest.raises(ValueError, match="no samples to draw"):
        draw(np.zeros((0, 2)))


def test_a_notebook_shows_summary_and_picture(service: FakeService, client: Client) -> None:
    result = client.sample("moons", 4, solver="rk4", steps=20, seed=0)
    png = result._repr_png_()
    assert png == result.picture(scale=2)
    assert pixels(result.picture()).shape == (1440, 1440, 3)
    html = result._repr_html_()
    assert "moons v3, rk4-20, seed 0" in html
    found = re.search(r'base64,([^"]+)"', html)
    assert found is not None
    assert base64.b64decode(found[1]) == png
    assert 'width="480"' in html


def test_a_result_that_is_no_picture_shows_its_summary(service: FakeService, client: Client) -> None:
    service.change = lambda arrays, meta: arrays.update(samples=np.zeros((4, 7)))
    result = client.sample("moons", 4, seed=0)
    assert result._repr_png_() is None
    assert "<img" not in result._repr_html_()


def test_without_matplotlib_a_notebook_shows_the_summary_and_a_picture_says_what_to_install(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = client.sample("moons", 4, seed=0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert "<img" not in result._repr_html_()
    with pytest.raises(ImportError, match=r"picture\(\) needs matplotlib.*pip install matplotlib"):
        result.picture()
