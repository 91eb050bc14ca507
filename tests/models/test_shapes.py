"""Free axes: their bounds, shapes with sizes, and sizes that a request gives in several places."""

import pytest
from pydantic import ValidationError

from models.shapes import (
    AxisSizes,
    FreeAxis,
    ShapeError,
    check_axes,
    computed,
    free_axes,
    free_places,
    line_of,
    matched,
    reshaped,
    sized,
    typical,
)

T = FreeAxis(min=3, max=41, multiple=4)


def test_an_axis_has_bounds_and_a_multiple() -> None:
    assert [size for size in range(50) if T.allows(size)] == list(range(4, 41, 4))
    assert (T.smallest, T.typical, T.describe()) == (4, 8, "4 to 41 in multiples of 4")
    assert [T.nearest(size) for size in (1, 9, 12, 99)] == [[4], [8, 12], [12], [40]]
    assert typical({"T": T, "L": FreeAxis(max=5), "N": FreeAxis(min=30, max=60)}) == {"T": 8, "L": 5, "N": 30}


def test_usual_bounds_are_not_written() -> None:
    assert FreeAxis(max=9).model_dump() == {"max": 9}
    assert FreeAxis.model_validate(T.model_dump()) == T


@pytest.mark.parametrize("fields", [{"min": 5, "max": 7, "multiple": 4}, {"max": 0}, {}, {"max": 4, "multiple": 0}])
def test_an_axis_without_sizes_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        FreeAxis.model_validate(fields)


def test_shapes_with_sizes() -> None:
    shape = (2, "H", "W", "H")
    assert sized(shape, {"H": 3, "W": 4}) == (2, 3, 4, 3)
    assert free_places(shape) == (1, 2, 3)
    assert matched(shape, (2, 3, 4, 3)) == {"H": 3, "W": 4}
    assert [matched(shape, found) for found in ((2, 3, 4), (1, 3, 4, 3), (2, 3, 4, 5))] == [None] * 3
    assert reshaped((1, 2, "T"), (1, 2, 7), (2, "T")) == (2, 7)
    with pytest.raises(ValueError, match=r"the shape is \[3\]; it must be \['T', 2\]"):
        reshaped(("T", 2), (3,), ("T",))
    with pytest.raises(ShapeError, match=r"the axis W of shape .* is free; it needs a size here"):
        sized(shape, {"H": 3})


def test_sizes_of_data_follow_from_axes() -> None:
    shape = (1, "256*T", "2*T-1", "L+3")
    assert sized(shape, {"T": 4, "L": 2}) == (1, 1024, 7, 5)
    assert free_axes(shape) == ("T", "L")
    assert computed((*shape, "T")) == ("256*T", "2*T-1", "L+3")
    assert matched(shape, (1, 1024, 7, 5)) == {"T": 4, "L": 2}
    assert [matched(shape, found) for found in ((1, 1023, 7, 5), (1, 1024, 5, 5), (2, 1024, 7, 5))] == [None] * 3
    assert reshaped((80, "T"), (80, 3), (1, "256*T-255")) == (1, 513)
    assert [str(line_of(text)) for text in ("T", "256*T", "T-1", "2*T+3")] == ["T", "256*T", "T-1", "2*T+3"]
    for wrong in ("0*T", "-T", "T*2", "2*T*3", "T/2", "2*3", "T+0", "T + 1", "", "99999999999*T"):
        with pytest.raises(ValueError, match="is not a size"):
            line_of(wrong)


def test_an_axis_takes_the_sizes_of_another() -> None:
    of = FreeAxis(min=4, max=40, multiple=2)
    assert all(of.takes(FreeAxis(**fields)) for fields in ({"min": 4, "max": 40, "multiple": 4}, {"min": 6, "max": 6}))
    others = ({"min": 2, "max": 40, "multiple": 2}, {"min": 4, "max": 40}, {"min": 4, "max": 42, "multiple": 2})
    assert not any(of.takes(FreeAxis(**fields)) for fields in (*others, {"min": 7, "max": 7}))


def test_bounds_must_be_there_and_fit_into_memory() -> None:
    with pytest.raises(ValueError, match="axes has no 'T'"):
        check_axes({"event_shape": (80, "T")}, {})
    with pytest.raises(ValueError, match="may hold more than"):
        check_axes({"event_shape": ("H", "W")}, {"H": FreeAxis(max=1 << 16), "W": FreeAxis(max=1 << 16)})
    with pytest.raises(ValueError, match="may hold more than"):
        check_axes({"data_shape": (3, "256*T")}, {"T": FreeAxis(max=1 << 18)})
    with pytest.raises(ValueError, match="less than 1 where its axes are smallest"):
        check_axes({"data_shape": ("2*T-6",)}, {"T": FreeAxis(min=3, max=9)})


def test_sizes_must_agree_wherever_they_are_said() -> None:
    sizes = AxisSizes({"T": T, "L": FreeAxis(max=9)})
    sizes.note("T", 12, "shape")
    sizes.note("T", 12, "condition 'mu'")
    with pytest.raises(ShapeError, match="x0 has T = 16, but shape has T = 12; they must agree"):
        sizes.note("T", 16, "x0")
    with pytest.raises(ShapeError, match="x0 has T = 13, expected 4 to 41 in multiples of 4; nearest: 12 and 16"):
        sizes.note("T", 13, "x0")
    assert sizes.settle(["T"]) == {"T": 12, "L": 1}
    with pytest.raises(ShapeError, match=r'L is missing; give shape \{"L": N\}, N from 1 to 9, or the text') as error:
        sizes.settle(["T", "L"], {"L": "the text"})
    assert error.value.axis == "L"
