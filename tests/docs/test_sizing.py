"""The arithmetic of docs/sizing.md."""

import math
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
ROW_S, HANDLING_S, NFE, RHO, PRICE = 5e-6, 1e-3, 80, 0.6, 0.04
"""The numbers behind the table; NFE is that of rk4-20."""


def line(start: str) -> str:
    [found] = [each for each in TEXT.splitlines() if each.startswith(f"| {start}")]
    return found


def test_the_table_follows_from_the_formulas() -> None:
    assert f"b = {1e6 * ROW_S:g} us, h = {1e3 * HANDLING_S:g} ms" in line("wanted")
    assert f"rho {RHO:g}, and at {PRICE:g}" in line("wanted")
    assert f"{1 / ROW_S:,.0f} rows/s | {1 / ROW_S / NFE:,.0f} samples a second" in line("one core")
    for rate, named, digits in ((200, "200 requests/s", 2), (100_000, "100,000 requests/s", 0)):
        cores = rate * (16 * NFE * ROW_S + HANDLING_S)
        replicas = math.ceil(cores / RHO)
        assert f"{replicas:,} replicas, {replicas * PRICE:.{digits}f} an hour" in line(named)
        assert f"{cores:,.1f}".removesuffix(".0") in line(named)
    hours = 1e10 * NFE * ROW_S / 3600
    bulk = line("10,000,000,000 samples")
    assert f"{hours:,.0f} core hours" in bulk
    assert f"{math.ceil(hours * 30):,} shards of two minutes; a day on {math.ceil(hours / 24)} cores; " in bulk
    assert f"; {hours * PRICE:.0f} |" in bulk


def test_cells_follow_from_the_table() -> None:
    cells = math.ceil(1234 / 40)
    assert f"One of {cells} cells takes {1 / cells:.0%} of the capacity with it" in " ".join(TEXT.split()).replace(
        " %", "%"
    )
