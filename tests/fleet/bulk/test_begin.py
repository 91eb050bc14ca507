"""The size of shards."""

import pytest

from fleet.bulk.begin import SHARD_S, shard_rows
from fleet.bulk.spec import BLOCK


@pytest.mark.parametrize("rate", [0.5, 1.0, 333.3, 25_000.0])
def test_a_shard_of_a_large_job_takes_two_minutes(rate: float) -> None:
    rows = shard_rows(rate, total=10**12, workers=2, row_bytes=8)
    assert SHARD_S == 120
    assert rows % BLOCK == 0
    assert 0 <= rows / rate - SHARD_S < BLOCK / rate  # rounded up to whole blocks


@pytest.mark.parametrize(
    ("rate", "total", "workers", "row_bytes", "rows"),
    [
        (1e6, 6400, 1, 8, 1600),  # four shards per worker
        (1e6, 6400, 4, 8, 448),  # 400 in whole blocks
        (1e9, 10**12, 1, 1 << 20, 512),  # 512 MiB of samples
        (1e-9, 10**6, 1, 8, BLOCK),  # at least a block, however slow the model,
        (1e6, 1, 8, 8, BLOCK),  # however short the job,
        (1e6, 10**9, 1, 1 << 40, BLOCK),  # and however large a sample
    ],
)
def test_a_shard_is_limited_by_job_and_memory(rate: float, total: int, workers: int, row_bytes: int, rows: int) -> None:
    assert shard_rows(rate, total, workers, row_bytes) == rows
