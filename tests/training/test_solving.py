"""Solvers as text: the table that all parsers share."""

import pytest

from tests.solvers.support import TUNED
from training.errors import UsageError
from training.solving import parse_solver


def test_text_is_read_as_everywhere():
    assert str(parse_solver("RK4:20/shift(3.0)")) == "rk4-20/shift(3)"
    assert str(parse_solver("tuned-6", TUNED)) == "tuned-6"
    with pytest.raises(UsageError, match="below the floor of 1e-07 for float32"):  # as networks in training are
        parse_solver("dopri5@1e-9")


@pytest.mark.parametrize(
    "text", ["rk4", "rk4:", "rk5:3", "dopri5@", "dopri5@x", "rk4@1e-3", "dopri5@1e-30", "euler:0", ""]
)
def test_what_is_no_solver_is_said(text: str):
    with pytest.raises(UsageError, match="solver"):
        parse_solver(text)
