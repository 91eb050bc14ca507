import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian, Mixture
from models.noise import noise
from models.velocity import RowStable, VelocityError


@pytest.mark.parametrize("field", [Gaussian(), Mixture()])
def test_analytic_fields_are_deterministic_in_float64(field: Gaussian | Mixture) -> None:
    stable = RowStable(field, (2,), torch.float64, max_rows=256)
    assert stable.deterministic
    x, t = noise(0, 0, 257, (2,), torch.float64), torch.linspace(0, 1, 257, dtype=torch.float64)
    whole = stable(x, t)
    assert torch.equal(whole[:1], stable(x[:1], t[:1]))
    assert torch.equal(whole[200:], stable(x[200:], t[200:]))
    torch.testing.assert_close(whole, field(x, t))


def test_counts_live_and_padded_rows() -> None:
    stable = RowStable(Gaussian(), (2,), torch.float64, max_rows=200)
    assert stable.max_rows == 256
    assert (stable.live_rows, stable.padded_rows) == (0, 0)
    stable(torch.zeros(5, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))
    assert stable.live_rows == 5
    assert stable.padded_rows == -5 % stable.buckets[0]


def test_no_rows_are_no_call() -> None:
    stable = RowStable(Gaussian(), (2,), torch.float64, max_rows=128)
    empty = torch.zeros(0, 2, dtype=torch.float64)
    assert stable(empty, empty[:, 0]).shape == (0, 2)


def test_a_condition_reaches_the_field() -> None:
    stable = RowStable(Gaussian(), (2,), torch.float64, max_rows=128)
    x = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(VelocityError, match="unconditional"):
        stable(x, x[:, 0], x)


@pytest.mark.parametrize(
    ("answer", "named"),
    [(lambda x: x[:, :1], r"shape \(128, 1\)"), (lambda x: x.double(), "float64"), (lambda x: x[0], r"shape \(2,\)")],
)
def test_a_wrong_answer_is_a_velocity_error(answer, named: str) -> None:
    def field(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        return answer(x)

    with pytest.raises(VelocityError, match=f"answered with .*{named}"):
        RowStable(field, (2,), torch.float32, max_rows=128)


def test_wrong_states_or_times_are_a_velocity_error() -> None:
    stable = RowStable(Gaussian(), (2,), torch.float64, max_rows=128)
    good = torch.zeros(3, 2, dtype=torch.float64)
    for x, t in [(good.float(), good[:, 0]), (good[:, :1], good[:, 0]), (good, good[:2, 0]), (good, good)]:
        with pytest.raises(VelocityError, match=r"this field takes torch.float64 of shape \(rows, 2\)"):
            stable(x, t)
