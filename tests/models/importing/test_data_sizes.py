"""The sizes of a decoder's data: expressions of axes that are found, and others that are refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from models.importing.files import ForeignError
from models.importing.parts import data_sizes, trial_sizes
from models.shapes import FreeAxis, sized

FILE = Path("vae.pt2")
T = {"T": FreeAxis(min=4, max=400, multiple=4)}
HW = {"H": FreeAxis(min=2, max=64), "W": FreeAxis(min=2, max=64)}


@pytest.mark.parametrize(
    ("axes", "made", "expected"),
    [
        (T, lambda T: (1, 256 * T), (1, "256*T")),
        (T, lambda T: (T,), ("T",)),
        (T, lambda T: (2 * T - 7, 3, T + 1), ("2*T-7", 3, "T+1")),
        (T, lambda T: (T // 4 * 8,), ("2*T",)),
        (T, lambda T: (5,), (5,)),
        (HW, lambda H, W: (3, 8 * H, 16 * W), (3, "8*H", "16*W")),
        (HW, lambda H, W: (W, 2 * H, 2 * W), ("W", "2*H", "2*W")),
        ({"T": FreeAxis(min=8, max=8)}, lambda T: (2 * T,), (16,)),
        ({"T": FreeAxis(min=7, max=9)}, lambda T: (2 * T,), ("2*T",)),
    ],
)
def test_sizes_are_found(
    axes: Mapping[str, FreeAxis], made: Callable[..., Any], expected: tuple[int | str, ...]
) -> None:
    found = data_sizes(FILE, lambda sizes: made(**sizes), axes)
    assert found == expected
    assert all(sized(found, sizes) == made(**sizes) for sizes in trial_sizes(axes))


@pytest.mark.parametrize(
    ("axes", "made", "message"),
    [
        (T, lambda T: (1, T // 4), r"dimension 2 of its data is 2 at T = 8; 3 at T = 12; .* multiple of one axis"),
        (T, lambda T: (T * T,), "multiple of one axis"),
        (HW, lambda H, W: (H * W,), "multiple of one axis"),
        (HW, lambda H, W: (H + W,), "multiple of one axis"),
        (HW, lambda H, W: (100 - H,), "multiple of one axis"),
        (HW, lambda H, W: (8 * (H // 3),), "multiple of one axis"),
        (HW, lambda H, W: (1,) * (H // 8), "a number of axes that depends"),
    ],
)
def test_others_are_refused(axes: Mapping[str, FreeAxis], made: Callable[..., Any], message: str) -> None:
    axes = {"H": FreeAxis(min=14, max=40), "W": axes["W"]} if "number of axes" in message else axes
    with pytest.raises(ForeignError, match=f"vae.pt2: .*{message}"):
        data_sizes(FILE, lambda sizes: made(**sizes), axes)


def test_all_trial_sizes_are_allowed() -> None:
    axes = {"T": FreeAxis(min=390, max=401, multiple=4), "L": FreeAxis(max=3), "N": FreeAxis(min=5, max=5)}
    shown = list(trial_sizes(axes))
    assert all(axes[name].allows(size) for sizes in shown for name, size in sizes.items())
    assert {sizes["T"] for sizes in shown} == {392, 396, 400}
    assert {sizes["L"] for sizes in shown} == {1, 2, 3}
    assert {sizes["N"] for sizes in shown} == {5}
