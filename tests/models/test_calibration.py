"""Calibration: bounded by work, memory and time, continued later, and stored with the checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.calibration import CALL_FLOPS, CALL_NUMBERS, Allowance, find_max_rows
from models.checkpoint.calibrations import CALIBRATION_FILE, keep, key_of, known
from models.noise import noise
from models.row_padding import RowCaller, RowStable


class Clock:
    """A clock that advances as rows are evaluated."""

    def __init__(self, a_row: float) -> None:
        self.now, self.a_row, self.rows = 0.0, a_row, 0

    def __call__(self) -> float:
        return self.now

    def field(self, x: Tensor, t: Tensor, condition: None = None) -> Tensor:
        self.rows += len(x)
        self.now += self.a_row * len(x)
        return x * 2


@pytest.mark.parametrize("a_row", [0.1, 0.005, 0.0001])
def test_measuring_ends_with_the_allowance(a_row: float) -> None:
    clock = Clock(a_row)
    stable = RowStable(clock.field, (3,), torch.float32, allowance=Allowance(5.0, clock))
    assert stable.deterministic
    assert clock.now < 5.0 + 1.0  # the call in progress at that time is finished
    assert stable.agreement.limit * a_row <= 5.0 / 16


def test_without_time_only_what_was_tried_is_used_and_the_rest_is_tried_later() -> None:
    seen: list[int] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x * 2 if len(x) % 16 == 0 else x * 2 + 1e-7

    x = noise(0, 0, 256, (3,))
    call = RowCaller(spy, (x,), 256, allowance=Allowance(0.0))
    assert (call.deterministic, call.agreement.complete, call.agreement.counts) == (True, False, (256,))
    seen.clear()
    first = call(x[:5])
    assert seen == [256]
    while call.refine():
        pass
    assert (call.buckets[0], call.progress) == (16, (0, 0))
    seen.clear()
    assert torch.equal(call(x[:5]), first)
    assert seen == [16]


def test_the_most_rows_follow_from_work_and_memory_and_not_from_time() -> None:
    layer = nn.Linear(1000, 1000).requires_grad_(False)

    def trial(rows: int) -> tuple[Tensor]:
        return (torch.zeros(rows, 1000),)

    def deep(x: Tensor) -> Tensor:
        for _ in range(20):
            x = layer(x)
        return x

    work = 20 * 2e6
    assert find_max_rows(deep, trial, 1024, 1, Allowance()) == 64 <= CALL_FLOPS["cpu"] / work
    wide = CALL_NUMBERS // 5
    assert find_max_rows(lambda x: x, lambda rows: (torch.empty(rows, wide),), 1024, 1, Allowance()) == 4


def test_what_was_measured_is_kept_beside_the_checkpoint(tmp_path: Path) -> None:
    clock = Clock(0.0)
    key = key_of("sha256:a", torch.device("cpu"), "sample")
    stable = RowStable(clock.field, (3,), torch.float32)
    keep(tmp_path, key, stable.form, stable.agreement)
    found = known(tmp_path, key)
    assert found is not None
    clock.rows = 0
    again = RowStable(clock.field, (3,), torch.float32, known=found)
    assert (clock.rows, again.agreement) == (0, replace(stable.agreement))
    for other in (key_of("sha256:b", torch.device("cpu"), "sample"), key_of("sha256:a", torch.device("cpu"), "other")):
        assert known(tmp_path, other) is None


def test_a_folder_that_cannot_be_written_and_a_damaged_file_are_no_error(tmp_path: Path) -> None:
    stable = RowStable(Clock(0.0).field, (3,), torch.float32)
    key = key_of("sha256:a", torch.device("cpu"))
    keep(tmp_path / "nowhere", key, 0, stable.agreement)
    (tmp_path / CALIBRATION_FILE).write_text("{")
    assert known(tmp_path, key) is None
    keep(tmp_path, key, 0, stable.agreement)
    assert known(tmp_path, key) == (0, stable.agreement)
