"""Row counts: limited by work and memory, and tested so that nothing that mixes rows passes as independent."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.forms.counts import CALL_NUMBERS, CALL_WORK, ONE_AT_A_TIME, find_counts, most_rows, work
from models.forms.rows import field_rows, independent_rows
from models.named_conditions import NamedCondition, NamedConditions
from models.noise import noise


def trial(rows: int) -> list[Tensor]:
    return [noise(0, 0, rows, (3,), torch.float64)]


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
    assert call.counts == ONE_AT_A_TIME
    seen.clear()
    call(trial(3)[0])
    assert seen == [1, 1, 1]


def test_a_network_too_heavy_for_two_rows_is_not_tested() -> None:
    seen: list[int] = []

    def heavy(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x @ torch.eye(x.shape[1])

    call = independent_rows([heavy], lambda rows: (torch.zeros(rows, 50_000)[:, :1].expand(rows, 1),), 1)
    assert (call.counts, set(seen)) == (ONE_AT_A_TIME, {1})


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


def test_a_function_that_differs_when_repeated_is_not_deterministic() -> None:
    calls = iter(range(10**6))
    call = independent_rows([lambda x: x + next(calls)], trial, 128)
    assert not call.counts.deterministic


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
        counts = field_rows(module, (3,), torch.float32, max_rows=limit, condition=TAKES).counts
        if counts != ONE_AT_A_TIME:
            passed.append((limit, module.source, module.row, module.size, module.depth))
    assert passed == []


def test_the_same_module_without_its_leak_is_independent() -> None:
    module = Mixes(random.Random(0))
    module.size = 0.0
    assert field_rows(module, (3,), torch.float32, max_rows=128, condition=TAKES).counts.limit == 128
