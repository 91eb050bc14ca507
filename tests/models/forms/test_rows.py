from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conventions import TimeCard, adapt
from models.decoder import Decoder
from models.forms.counts import ONE_AT_A_TIME
from models.forms.rows import field_rows, independent_rows
from models.noise import noise
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
    field = field_rows(network(dim=2), (2,), torch.float32, max_rows=256)
    assert field.counts.deterministic
    x, t = noise(5, 0, 300, (2,)), torch.rand(300, generator=torch.Generator().manual_seed(1))
    whole = field(x, t)
    generator = torch.Generator().manual_seed(threads)
    for rows in ROWS:
        chosen = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(field(x[chosen], t[chosen]), whole[chosen]), f"{rows} rows"


def test_every_number_of_rows_agrees_with_one_thread(one_thread: None) -> None:
    field = field_rows(network(dim=2), (2,), torch.float32)
    x, t = noise(5, 0, 1024, (2,)), torch.linspace(0, 1, 1024)
    whole = field(x, t)
    for rows in [*range(1, 130), *range(131, 1025, 97)]:
        begin = 1024 - rows if rows % 2 else 0  # also views with an alignment that no new tensor has
        assert torch.equal(field(x[begin : begin + rows], t[begin : begin + rows]), whole[begin : begin + rows])


@pytest.mark.parametrize("hidden", [3, 10, 31, 50, 130])
def test_odd_widths_have_a_form_whose_rows_do_not_depend_on_their_neighbours(hidden: int, threads: int) -> None:
    velocity = network(dim=2, hidden=hidden)
    field = field_rows(velocity, (2,), torch.float32, max_rows=256)
    assert field.counts.deterministic
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
        assert field_rows(field, (2,), torch.float32, max_rows=128).counts.counts
        return
    field = JacobianField((2,)) if kind == "jacobian" else LogDensityField((2,))
    whole = (field.width + field.constants,)
    stable = field_rows(velocity, whole, torch.float32, max_rows=128, derive=field, examples=field.examples)
    assert stable.counts.deterministic


def test_the_first_form_that_agrees_is_taken_and_where_none_does_the_first_row_by_row() -> None:
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

    x, t = torch.zeros(3, 2), torch.zeros(3)
    call = field_rows(Forms(placed, good, placed), (2,), torch.float32, max_rows=128)
    assert (call.counts.limit, call(x, t).tolist()) == (128, x.tolist())
    call = field_rows(Forms(placed, placed), (2,), torch.float32, max_rows=128)
    assert (call.counts, call(x, t).tolist()) == (ONE_AT_A_TIME, x.tolist())


def test_decoded_rows_do_not_depend_on_their_neighbours(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = (torch.randn(size, generator=generator) for size in ((784,), (64, 784), (64,)))
    decoder = Decoder.pca(*parts, data_shape=(28, 28), clip=(-9.0, 9.0))
    decode = independent_rows([decoder.decode], lambda rows: (noise(0, 0, rows, (64,)),), 256)
    assert decode.counts.limit == 256
    x = noise(2, 0, 300, (64,))
    whole = decode(x)
    torch.testing.assert_close(whole, decoder.decode(x))
    for rows in ROWS:
        chosen = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(decode(x[chosen]), whole[chosen]), f"{rows} rows"


def test_padding_copies_a_live_row() -> None:
    seen: list[Tensor] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return x * 2

    call = independent_rows([spy], trial, 128)
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

    call = independent_rows([spy], trial, 128)
    sizes.clear()
    x = noise(0, 0, 261, (3,))
    assert torch.equal(call(x), x)
    assert sizes == [128, 128, 8]


@pytest.mark.parametrize("field", [Gaussian(), Mixture()])
def test_analytic_fields_are_deterministic_in_float64(field: Gaussian | Mixture) -> None:
    stable = field_rows(field, (2,), torch.float64, max_rows=256)
    assert stable.counts.deterministic
    x, t = noise(0, 0, 257, (2,), torch.float64), torch.linspace(0, 1, 257, dtype=torch.float64)
    whole = stable(x, t)
    assert torch.equal(whole[:1], stable(x[:1], t[:1]))
    assert torch.equal(whole[200:], stable(x[200:], t[200:]))
    torch.testing.assert_close(whole, field(x, t))


def test_calls_are_padded_to_a_number_that_agrees_and_cut_at_the_limit() -> None:
    seen: list[int] = []

    def spy(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        seen.append(len(x))
        return x * 2

    call = field_rows(spy, (2,), torch.float64, max_rows=300)
    seen.clear()
    for rows in (5, 256, 257, 130):
        call(torch.zeros(rows, 2, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64))
    assert call.counts.limit == 256
    assert seen == [8, 256, 256, 4, 160]


@pytest.mark.parametrize(
    ("answer", "named"),
    [(lambda x: x[:, :1], r"shape \(128, 1\)"), (lambda x: x.double(), "float64"), (lambda x: x[0], r"shape \(2,\)")],
)
def test_a_wrong_answer_is_a_velocity_error(answer, named: str) -> None:
    def field(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        return answer(x)

    with pytest.raises(VelocityError, match=f"returned .*{named}"):
        field_rows(field, (2,), torch.float32, max_rows=128)
