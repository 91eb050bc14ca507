from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.calibration import BUCKETS, measure
from models.conventions import TimeCard, adapt
from models.decoder import Decoder
from models.noise import noise
from models.row_padding import RowCaller, RowStable
from models.velocity import VelocityError
from solvers.derived import JacobianField, LogDensityField

ROWS = [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 31, 33, 48, 63, 64, 65, 100, 127, 129, 255, 256, 300]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(**sizes: Any) -> ResidualMLP:
    torch.manual_seed(0)
    return ResidualMLP(ResidualMLPConfig(**sizes)).requires_grad_(False)


def trial(limit: int) -> list[Tensor]:
    return [noise(0, 0, limit, (3,), torch.float64)]


def test_rows_of_the_papers_network_do_not_depend_on_their_neighbours(threads: int) -> None:
    field = RowStable(network(dim=2), (2,), torch.float32, max_rows=256)
    assert field.deterministic
    x, t = noise(5, 0, 300, (2,)), torch.rand(300, generator=torch.Generator().manual_seed(1))
    whole = field(x, t)
    generator = torch.Generator().manual_seed(threads)
    for rows in ROWS:
        chosen = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(field(x[chosen], t[chosen]), whole[chosen]), f"{rows} rows"


def test_every_number_of_rows_agrees_with_one_thread(one_thread: None) -> None:
    field = RowStable(network(dim=2), (2,), torch.float32)
    x, t = noise(5, 0, 1024, (2,)), torch.linspace(0, 1, 1024)
    whole = field(x, t)
    for rows in [*range(1, 130), *range(131, 1025, 97)]:
        begin = 1024 - rows if rows % 2 else 0  # also views with an alignment that no new tensor has
        assert torch.equal(field(x[begin : begin + rows], t[begin : begin + rows]), whole[begin : begin + rows])


@pytest.mark.parametrize("hidden", [3, 10, 31, 50, 130])
def test_odd_widths_have_a_form_whose_rows_do_not_depend_on_their_neighbours(hidden: int, threads: int) -> None:
    velocity = network(dim=2, hidden=hidden)
    field = RowStable(velocity, (2,), torch.float32, max_rows=256)
    assert field.deterministic
    x, t = noise(5, 0, 300, (2,)), torch.rand(300, generator=torch.Generator().manual_seed(1))
    whole = field(x, t)
    torch.testing.assert_close(whole, velocity(x, t), rtol=1e-4, atol=1e-5)
    for rows in ROWS:
        chosen = torch.randperm(300, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(field(x[chosen], t[chosen]), whole[chosen]), f"{rows} rows"


@pytest.mark.parametrize("kind", ["adapted", "log density", "jacobian"])
def test_what_is_made_of_a_network_of_odd_width_has_its_forms(kind: str) -> None:
    velocity = network(dim=2, hidden=130)
    if kind == "adapted":
        field: Any = adapt(velocity, TimeCard(noise_at=1, data_at=0, scale=1000.0))
        assert RowStable(field, (2,), torch.float32, max_rows=128).deterministic
        return
    field = JacobianField((2,)) if kind == "jacobian" else LogDensityField((2,))
    whole = (field.width + field.constants,)
    stable = RowStable(velocity, whole, torch.float32, max_rows=128, derive=field, examples=field.examples)
    assert stable.deterministic


def test_the_first_form_that_agrees_is_taken_and_where_none_does_the_first() -> None:
    def placed(x: Tensor, t: Tensor) -> Tensor:
        return x + torch.arange(len(x))[:, None]

    class Forms:
        def __init__(self, *fields: Any) -> None:
            self.fields = fields

        def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
            return x

        def forms(self) -> Iterator[Any]:
            return iter(self.fields)

    def good(x: Tensor, t: Tensor) -> Tensor:
        return x

    assert RowStable(Forms(placed, good, placed), (2,), torch.float32, max_rows=128).velocity is good
    field = RowStable(Forms(placed, placed), (2,), torch.float32, max_rows=128)
    assert (field.velocity, field.deterministic) == (placed, False)


def test_decoded_rows_do_not_depend_on_their_neighbours(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = (torch.randn(size, generator=generator) for size in ((784,), (64, 784), (64,)))
    decoder = Decoder.pca(*parts, data_shape=(28, 28), clip=(-9.0, 9.0))
    decode = RowCaller(decoder.decode, (noise(0, 0, 256, (64,)),), 256)
    assert decode.deterministic
    x = noise(2, 0, 300, (64,))
    whole = decode(x)
    torch.testing.assert_close(whole, decoder.decode(x))
    for rows in ROWS:
        chosen = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(decode(x[chosen]), whole[chosen]), f"{rows} rows"


def test_buckets_that_differ_in_a_bit_are_dropped() -> None:
    def spoiled(x: Tensor) -> Tensor:  # bits differ unless the rows are a multiple of 16
        return x if len(x) % 16 == 0 else x.nextafter(torch.zeros_like(x))

    assert measure(spoiled, trial(512), 512).found.buckets == (16, 32, 64, 128)


def test_where_only_small_calls_agree_calls_are_limited() -> None:
    def spoiled(x: Tensor) -> Tensor:
        return x if len(x) <= 128 else x.nextafter(torch.zeros_like(x))

    found = measure(spoiled, trial(1024), 1024).found
    assert found.buckets == BUCKETS
    assert found.limit == 128
    call = RowCaller(spoiled, trial(1024), 1024)
    x = noise(1, 0, 1000, (3,), torch.float64)
    assert torch.equal(call(x), x)


def test_a_function_of_the_place_in_the_batch_is_not_deterministic() -> None:
    def placed(x: Tensor) -> Tensor:
        return x + torch.arange(len(x))[:, None]

    call = RowCaller(placed, trial(256), 256)
    assert not call.deterministic
    assert call.buckets == ()
    assert torch.equal(call(torch.zeros(3, 1)), torch.tensor([[0.0], [1.0], [2.0]]))


def test_padding_copies_a_live_row() -> None:
    seen: list[Tensor] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return x * 2

    call = RowCaller(spy, trial(128), 128)
    seen.clear()
    x = torch.arange(18.0).reshape(6, 3)
    assert torch.equal(call(x), x * 2)
    assert torch.equal(seen[0], torch.cat([x, x[:1], x[:1]]))
    call(x[:4])
    assert seen[1].data_ptr() == x.data_ptr()  # nothing is copied if no rows are missing


def test_calls_over_the_limit_are_made_in_pieces() -> None:
    sizes: list[int] = []

    def spy(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    call = RowCaller(spy, trial(128), 128)
    sizes.clear()
    x = noise(0, 0, 261, (3,))
    assert torch.equal(call(x), x)
    assert sizes == [128, 128, 8]


@pytest.mark.parametrize("field", [Gaussian(), Mixture()])
def test_analytic_fields_are_deterministic_in_float64(field: Gaussian | Mixture) -> None:
    stable = RowStable(field, (2,), torch.float64, max_rows=256)
    assert stable.deterministic
    x, t = noise(0, 0, 257, (2,), torch.float64), torch.linspace(0, 1, 257, dtype=torch.float64)
    whole = stable(x, t)
    assert torch.equal(whole[:1], stable(x[:1], t[:1]))
    assert torch.equal(whole[200:], stable(x[200:], t[200:]))
    torch.testing.assert_close(whole, field(x, t))


def test_calls_are_padded_to_the_smallest_bucket_and_cut_at_the_row_limit_rounded_up() -> None:
    seen: list[int] = []

    def spy(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        seen.append(len(x))
        return x * 2

    stable = RowStable(spy, (2,), torch.float64, max_rows=200)
    seen.clear()
    for rows in (5, 256, 257):
        stable(torch.zeros(rows, 2, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64))
    assert stable.buckets[0] == 4
    assert seen == [8, 256, 256, 4]


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

    with pytest.raises(VelocityError, match=f"returned .*{named}"):
        RowStable(field, (2,), torch.float32, max_rows=128)


def test_wrong_states_or_times_are_a_velocity_error() -> None:
    stable = RowStable(Gaussian(), (2,), torch.float64, max_rows=128)
    good = torch.zeros(3, 2, dtype=torch.float64)
    for x, t in [(good.float(), good[:, 0]), (good[:, :1], good[:, 0]), (good, good[:2, 0]), (good, good)]:
        with pytest.raises(VelocityError, match=r"this field takes torch.float64 of shape \(rows, 2\)"):
            stable(x, t)
