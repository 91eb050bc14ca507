import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conditions import NamedCondition, NamedConditions
from models.conventions import TimeCard, adapt
from models.decoder import Decoder
from models.forms.rows import (
    CALL_NUMBERS,
    CALL_WORK,
    best_rows,
    field_rows,
    find_counts,
    independent_rows,
    most_rows,
    work,
)
from models.noise import noise
from models.shapes import FreeAxis
from models.velocity import VelocityError
from solvers.derived import jacobian_field, log_density_field

ROWS = [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 31, 33, 48, 63, 64, 65, 100, 127, 129, 255, 256, 300]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def network(**sizes: Any) -> ResidualMLP:
    torch.manual_seed(0)
    return ResidualMLP(ResidualMLPConfig(**sizes)).requires_grad_(False)


def trial(limit: int) -> list[Tensor]:
    return [noise(0, 0, limit, (3,), torch.float64)]


def test_rows_of_the_papers_network_do_not_depend_on_their_neighbours(threads: int) -> None:
    field = field_rows(network(dim=2), (2,), torch.float32, max_rows=256)
    assert field.deterministic
    x, t = noise(5, 0, 300, (2,)), torch.rand(300, generator=torch.Generator().manual_seed(1))
    whole = field(x, t)
    generator = torch.Generator().manual_seed(threads)
    for rows in ROWS:
        chosen = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(field(x[chosen], t[chosen]), whole[chosen]), f"{rows} rows"


def test_every_number_of_rows_agrees_with_one_thread() -> None:
    field = field_rows(network(dim=2), (2,), torch.float32)
    x, t = noise(5, 0, 1024, (2,)), torch.linspace(0, 1, 1024)
    whole = field(x, t)
    for rows in [*range(1, 130), *range(131, 1025, 97)]:
        begin = 1024 - rows if rows % 2 else 0  # also views with an alignment that no new tensor has
        assert torch.equal(field(x[begin : begin + rows], t[begin : begin + rows]), whole[begin : begin + rows])


@pytest.mark.parametrize("hidden", [3, 31, 130])
def test_odd_widths_have_a_form_whose_rows_do_not_depend_on_their_neighbours(hidden: int, threads: int) -> None:
    velocity = network(dim=2, hidden=hidden)
    field = field_rows(velocity, (2,), torch.float32, max_rows=256)
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
        assert field_rows(field, (2,), torch.float32, max_rows=128).counts
        return
    field = jacobian_field((2,)) if kind == "jacobian" else log_density_field((2,))
    whole = (field.width + field.constants,)
    stable = field_rows(velocity, whole, torch.float32, max_rows=128, derive=field, examples=field.examples)
    assert stable.deterministic


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
    assert (call.limit, call(x, t).tolist()) == (128, x.tolist())
    call = field_rows(Forms(placed, placed), (2,), torch.float32, max_rows=128)
    assert (call.limit, call(x, t).tolist()) == (1, x.tolist())


def test_decoded_rows_do_not_depend_on_their_neighbours(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = (torch.randn(size, generator=generator) for size in ((784,), (64, 784), (64,)))
    decoder = Decoder.pca(*parts, data_shape=(28, 28), clip=(-9.0, 9.0))
    decode = independent_rows([decoder.decode], lambda rows: (noise(0, 0, rows, (64,)),), 256)
    assert decode.limit == 256
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
    assert stable.deterministic
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
    assert call.limit == 256
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


def test_the_most_rows_follow_from_work_and_memory() -> None:
    layer = nn.Linear(1000, 1000).requires_grad_(False)

    def deep(x: Tensor) -> Tensor:
        for _ in range(20):
            x = layer(x)
        return x

    def elementwise(x: Tensor) -> Tensor:
        for _ in range(1000):
            x = x.sin()
        return x

    def rows_of_1000(rows: int) -> tuple[Tensor]:
        return (torch.zeros(rows, 1000),)

    assert work(deep, rows_of_1000(1)) == 20 * 2e6
    assert most_rows(deep, rows_of_1000, 1024) == 64 <= CALL_WORK["cpu"] / (20 * 2e6)
    assert most_rows(elementwise, rows_of_1000, 1024) == 384 <= CALL_WORK["cpu"] / (8 * 1e6)
    assert most_rows(lambda x: x, lambda rows: (torch.empty(rows, CALL_NUMBERS // 5),), 1024) == 4
    assert most_rows(deep, lambda rows: (torch.zeros(rows, 1000),), 6, least=6) == 6


def test_numbers_of_rows_that_differ_in_a_bit_are_dropped() -> None:
    def spoiled(x: Tensor) -> Tensor:  # bits differ unless the rows are a multiple of 16
        return x if len(x) % 16 == 0 else x.nextafter(torch.zeros_like(x))

    counts = find_counts(spoiled, trial, 512)
    assert counts is not None
    assert counts.counts == (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


def test_padding_wastes_little() -> None:
    counts = find_counts(lambda x: x * 2, trial, 1024)
    assert counts is not None
    assert all(counts.padded(rows) - rows <= max(3, rows / 4) for rows in range(1, 1025))


def test_where_only_small_calls_agree_calls_are_limited() -> None:
    def spoiled(x: Tensor) -> Tensor:
        return x if len(x) <= 128 else x.nextafter(torch.zeros_like(x))

    counts = find_counts(spoiled, trial, 1024)
    assert counts is not None
    assert (counts.counts[0], counts.counts[-1], counts.limit) == (4, 128, 128)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.arange(len(x))[:, None],
        lambda x: x + 1e-9 * x[:1],
        lambda x: x * x.mean(),
        lambda x: x + x.roll(1, 0) if len(x) > 1 else x,
        lambda x: x + x.amax(0).ceil() % 2,
    ],
    ids=["place", "first row", "mean", "row before", "parity of the largest"],
)
@pytest.mark.parametrize("limit", [2, 4, 16, 32, 128, 1024])
def test_functions_that_mix_rows_are_called_with_one_row_at_a_time(
    function: Callable[[Tensor], Tensor], limit: int
) -> None:
    seen: list[int] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(len(x))
        return function(x)

    call = independent_rows([spy], trial, limit)
    assert call.limit == 1
    seen.clear()
    call(trial(3)[0])
    assert seen == [1, 1, 1]


def test_a_network_too_heavy_for_two_rows_is_not_tested() -> None:
    seen: list[int] = []

    def heavy(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x @ torch.eye(x.shape[1])

    call = independent_rows([heavy], lambda rows: (torch.zeros(rows, 50_000)[:, :1].expand(rows, 1),), 1)
    assert (call.limit, set(seen)) == (1, {1})


def test_calls_of_two_rows_are_compared_at_other_places() -> None:
    """Products of 2 rows give the first and the second other bits: seen with one thread and AVX2 or AVX-512."""
    torch.manual_seed(0)
    layer = nn.Linear(65, 8192, bias=False).requires_grad_(False)

    def rows(count: int) -> tuple[Tensor]:
        return (noise(0, 0, count, (65,)),)

    call = independent_rows([layer], rows, 2)
    x = noise(1, 0, 9, (65,))
    whole = call(x)
    for place in range(9):
        for beside in range(9):
            assert torch.equal(call(x[[place, beside]])[0], whole[place])


def test_a_smaller_limit_is_tested_with_as_many_rows_as_the_first() -> None:
    """As products with a transposed matrix in float32: the second of two has other bits, but few rows show it."""

    def rarely(x: Tensor) -> Tensor:
        shown = (x[:, :1] > 1.3) & (torch.arange(len(x))[:, None] % 2 == 1)
        return torch.where(shown, x.nextafter(torch.zeros_like(x)), x)

    assert find_counts(rarely, trial, 128) is None


def test_a_function_that_differs_when_repeated_is_not_deterministic() -> None:
    calls = iter(range(10**6))
    call = independent_rows([lambda x: x + next(calls)], trial, 128)
    assert not call.deterministic


class Mixes(nn.Module):
    """A residual MLP with a leak: a row gets a little of an input of another row.

    Attributes:
        source: which input leaks: x, t, a number, a label or a flag.
        row: which row of the call it comes from.
        size: how much.
        depth: the block before which it is added.
    """

    SOURCES = ("x", "t", "number", "label", "flag")
    ROWS = ("first", "last", "second", "middle", "before", "after", "mean", "largest", "count")

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        torch.manual_seed(draw.randrange(2**31))
        self.network = ResidualMLP(ResidualMLPConfig(dim=3, hidden=16, blocks=2)).requires_grad_(False)
        self.source, self.row = draw.choice(self.SOURCES), draw.choice(self.ROWS)
        self.size, self.depth = 10.0 ** draw.uniform(-4, 0), draw.randrange(3)

    def leak(self, values: Tensor) -> Tensor:
        rows = len(values)
        if self.row == "count":
            return values.new_full((rows, 1), float(rows))
        if self.row in ("before", "after"):
            return values.roll(1 if self.row == "before" else -1, 0)
        picked = {
            "first": values[:1],
            "last": values[-1:],
            "second": values[min(1, rows - 1)][None],
            "middle": values[rows // 2][None],
            "mean": values.mean(0, keepdim=True),
            "largest": values.amax(0, keepdim=True),
        }[self.row]
        return picked.expand(rows, 1)

    def forward(self, x: Tensor, t: Tensor, condition: dict[str, Tensor]) -> Tensor:
        given = {"x": x.sum(1), "t": t, **condition}[self.source]
        leak = self.size * self.leak(given.to(x.dtype)[:, None])
        bare = self.network.bare()
        x = x + leak if self.depth == 0 else x
        v = bare(x, t + leak[:, 0] if self.depth == 1 else t) + condition["number"][:, None]
        return v + leak if self.depth == 2 else v


TAKES = NamedConditions(
    {
        "number": NamedCondition(),
        "label": NamedCondition(dtype="int64", classes=4),
        "flag": NamedCondition(dtype="bool"),
    }
)


def test_none_of_sixty_random_modules_that_mix_rows_passes_as_independent() -> None:
    draw = random.Random(0)
    passed = []
    for limit in (2, 4, 8, 16, 32, 128) * 10:
        module = Mixes(draw)
        if field_rows(module, (3,), torch.float32, max_rows=limit, condition=TAKES).limit > 1:
            passed.append((limit, module.source, module.row, module.size, module.depth))
    assert passed == []


def test_the_same_module_without_its_leak_is_independent() -> None:
    module = Mixes(random.Random(0))
    module.size = 0.0
    assert field_rows(module, (3,), torch.float32, max_rows=128, condition=TAKES).limit == 128


def test_a_call_has_as_many_rows_as_share_starts_or_weights_and_one_where_products_take_the_time() -> None:
    def rows(network: nn.Module, *shape: int | str) -> int | None:
        return best_rows(
            network, [(shape, torch.float32)], {"T": FreeAxis(min=6, max=6), "W": FreeAxis(min=64, max=64)}
        )

    with torch.device("meta"):
        small, wide = nn.Linear(64, 64), nn.Linear(4096, 4096)
        picture = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1))
    assert rows(small, 64) is None
    assert rows(wide, 4096) == 8
    assert rows(wide, 512, 4096) == 1  # 512 tokens read the weights once
    assert rows(picture, 64, 64, 64) == 1
    assert rows(wide, 6, 4096) == 8
    assert rows(wide, "T", 4096) == 1
    assert rows(small, "W") == 8
