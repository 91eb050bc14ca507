"""Frontier files: bound to the weights, refused with a reason if damaged, and replaced atomically."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.architectures.analytic import Gaussian, GaussianConfig
from models.checkpoint.bound import BoundFileError
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from selection.frontier import (
    FRONTIER_FILE,
    Curve,
    Point,
    StoredFrontier,
    merged,
    pareto,
    read_frontier,
    store_frontier,
)
from tests.selection.support import point

POINT = point("rk4-4", 16, 0.02)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path, "exact", Gaussian(GaussianConfig()), Decoder.identity((2,)), dataset={}, training={}, seed=0)


def _frontier(folder: Path, **changes: Any) -> StoredFrontier:
    curve = Curve(samples=256, seed=0, spread=1.0, points=(POINT, POINT.model_copy(update={"solver": "tuned-6"})))
    fields = {"weights_sha256": read_card(folder).weights_sha256, "reference": "exact", "curves": (curve,)}
    return StoredFrontier(**fields | changes)


def test_it_is_kept_beside_the_weights_and_bound_to_them(saved: Path) -> None:
    assert read_frontier(saved, read_card(saved)) is None
    frontier = _frontier(saved)
    frontier.write(saved)
    assert read_frontier(saved, read_card(saved)) == frontier
    assert {path.name for path in saved.iterdir()} == {"card.json", "weights.safetensors", "frontier.json"}
    assert load(saved).card == read_card(saved)
    _frontier(saved, weights_sha256="0" * 64).write(saved)
    with pytest.raises(BoundFileError, match=r"found 0{64}, the card has"):
        read_frontier(saved, read_card(saved))


def test_points_of_other_plans_are_left_out(saved: Path) -> None:
    _frontier(saved).write(saved)
    (saved / "plans.json").write_text("{}")
    found = read_frontier(saved, read_card(saved))
    assert found is not None
    assert [point.solver for point in found.curves[0].points] == ["rk4-4"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe", b"[" * 5000, b'{"curves": []}', b'{"curves": [{"spread": NaN}]}'],
)
def test_a_damaged_one_is_refused_with_its_name(saved: Path, content: bytes) -> None:
    (saved / FRONTIER_FILE).write_bytes(content)
    with pytest.raises(BoundFileError, match=r"frontier\.json"):
        read_frontier(saved, read_card(saved))


def test_a_pipe_is_not_read(saved: Path) -> None:
    os.mkfifo(saved / FRONTIER_FILE)
    with pytest.raises(BoundFileError, match="named pipe"):
        read_frontier(saved, read_card(saved))


def test_a_full_disk_leaves_what_was_there(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _frontier(saved).write(saved)
    before = (saved / FRONTIER_FILE).read_bytes()

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("models.checkpoint.bound.write_atomically", full)
    with pytest.raises(BoundFileError, match="No space left on device; nothing was changed"):
        _frontier(saved).write(saved)
    assert (saved / FRONTIER_FILE).read_bytes() == before


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 2)), max_size=30))
def test_no_point_beats_one_of_the_best(pairs: list[tuple[float, float]]) -> None:
    points = [point(f"a-{k}", n, e) for k, (n, e) in enumerate(pairs)]
    best = pareto(points)
    for one in points:
        assert any(b.nfe_most <= one.nfe_most and b.p95_high <= one.p95_high for b in best)
    for one in best:
        assert not any(p.nfe_most <= one.nfe_most and p.p95_high < one.p95_high for p in points)


def _points(*solvers: str, error: float = 0.02) -> tuple[Point, ...]:
    return tuple(POINT.model_copy(update={"solver": solver, "p95_high": error}) for solver in solvers)


def _curve(*solvers: str, **changes: Any) -> Curve:
    return Curve(**{"samples": 256, "seed": 0, "spread": 1.0, "points": _points(*solvers), "complete": False} | changes)


def test_new_points_replace_those_of_the_same_solver_and_others_stay(saved: Path) -> None:
    old = _frontier(saved, curves=(_curve("rk4-1", "rk4-4"), _curve("ab4-2", guidance=2.0)))
    new = _curve(points=_points("rk4-4", "rk4-8", error=0.5))
    both = merged(old, _frontier(saved, curves=(new, _curve("ab4-9", guidance=3.0))))
    assert both is not None
    assert [curve.guidance for curve in both.curves] == [None, 2.0, 3.0]
    assert {point.solver: point.p95_high for point in both.curves[0].points} == {
        "rk4-1": 0.02, "rk4-4": 0.5, "rk4-8": 0.5,
    }  # fmt: skip
    assert not both.curves[0].complete


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("plans", [None, "a" * 64, "b" * 64])
def test_it_is_complete_if_one_part_was_and_has_the_plans(
    saved: Path, before: bool, after: bool, plans: str | None
) -> None:
    old = _frontier(saved, curves=(_curve("rk4-1", complete=before),), plans_sha256="a" * 64)
    new = _frontier(saved, curves=(_curve("rk4-4", complete=after),), plans_sha256=plans)
    both = merged(old, new)
    assert both is not None
    assert both.plans_sha256 == plans
    assert both.curves[0].complete == (after or (before and plans != "b" * 64))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ({"complete": True}, {"samples": 64}, True),
        ({"complete": True}, {"samples": 64, "complete": True}, True),
        ({}, {"samples": 64, "complete": True}, False),
        ({"points": _points("rk4-1", "rk4-2")}, {"spread": 1.1}, True),
        ({}, {"samples": 64, "points": _points("rk4-1", "rk4-2")}, False),
        ({"samples": 64}, {}, False),
        ({"complete": True}, {"complete": True, "spread": 1.1}, False),
    ],
)
def test_of_two_on_other_paths_the_more_complete_is_kept(
    saved: Path, old: dict[str, Any], new: dict[str, Any], kept: bool
) -> None:
    before, after = (_frontier(saved, curves=(_curve("rk4-4", **changes),)) for changes in (old, new))
    before.write(saved)
    line = store_frontier(saved, read_card(saved), after)
    assert read_frontier(saved, read_card(saved)) == (before if kept else after)
    assert ("is unchanged: it was measured on other paths" in line) == kept


def test_other_sizes_and_what_cannot_be_used_are_replaced(saved: Path) -> None:
    _frontier(saved, sizes={"T": 4}, curves=(_curve("rk4-1", "rk4-4", complete=True),)).write(saved)
    new = _frontier(saved, sizes={"T": 8}, curves=(_curve("rk4-4"),))
    assert store_frontier(saved, read_card(saved), new).endswith("in place of one measured on other paths")
    assert read_frontier(saved, read_card(saved)) == new
    (saved / FRONTIER_FILE).write_text("{")
    assert store_frontier(saved, read_card(saved), new).endswith("in place of one that cannot be used")


def test_there_are_not_more_curves_than_the_file_can_have(saved: Path) -> None:
    _frontier(saved, curves=tuple(_curve("rk4-1", guidance=g) for g in range(100))).write(saved)
    with pytest.raises(BoundFileError, match="has 100 strengths of guidance already; delete it"):
        store_frontier(saved, read_card(saved), _frontier(saved, curves=(_curve("rk4-1", guidance=100.0),)))


def test_an_edited_frontier_is_refused(saved: Path) -> None:
    path = _frontier(saved).write(saved)
    path.write_bytes(path.read_bytes().replace(b'"nfe_most"', b'"nfe_most" ').replace(b"rk4-4", b"rk4-9"))
    with pytest.raises(
        BoundFileError, match=r"is damaged or was edited: sha256 found .* expected .*; measure it again"
    ):
        read_frontier(saved, read_card(saved))
    assert store_frontier(saved, read_card(saved), _frontier(saved)).endswith("in place of one that cannot be used")
