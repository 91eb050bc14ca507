from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.bulk.fingerprint import fingerprint, together

ROWS = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)


@given(st.lists(st.integers(0, 4), unique=True))
def test_fingerprint_does_not_depend_on_the_shards_or_their_order(cuts: list[int]) -> None:
    edges = [0, *sorted(64 * cut for cut in cuts if cut), 300]
    parts = [fingerprint(a, ROWS[a:b]) for a, b in pairwise(edges)]
    assert together(reversed(parts)) == fingerprint(0, ROWS)


@pytest.mark.parametrize("change", ["bit", "swap", "double", "lose", "shift"])
def test_fingerprint_detects_every_accident(change: str) -> None:
    rows, first = ROWS.copy(), 0
    if change == "bit":
        rows.view(np.int32)[200, 1] ^= 1
    elif change == "swap":
        rows[[0, 128]] = rows[[128, 0]]
    elif change == "double":
        rows[64:128] = rows[:64]
    elif change == "lose":
        rows = rows[:-1]
    else:
        first = 64
    assert fingerprint(first, rows) != fingerprint(0, ROWS)
