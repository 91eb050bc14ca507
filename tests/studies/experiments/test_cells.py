import json
from pathlib import Path

import numpy as np
import pytest

from studies.experiments.cells import Cells, plain
from training.errors import StateError, TrainingError


def test_a_result_is_measured_once_and_read_after_that(tmp_path: Path):
    calls: list[int] = []

    def compute() -> dict[str, object]:
        calls.append(1)
        return {"values": np.arange(3.0), "share": np.float32(0.5), "none": float("nan")}

    expected = {"values": [0.0, 1.0, 2.0], "share": 0.5, "none": None}
    first, second = Cells(tmp_path / "a"), Cells(tmp_path / "a")
    assert first.get("x", {"seed": 0}, compute) == expected
    assert second.get("x", {"seed": 0}, compute) == expected
    assert len(calls) == 1
    assert (first.found, second.found) == (0, 1)
    assert second.seconds == first.seconds
    assert second.get("x", {"seed": 1}, compute) == expected
    assert len(calls) == 2


def test_a_measurement_that_fails_leaves_nothing_behind(tmp_path: Path):
    def fail() -> None:
        raise TrainingError("no")

    with pytest.raises(TrainingError, match="no"):
        Cells(tmp_path).get("x", {}, fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"value": 1}', '{"seconds": "x", "value": 1}'])
def test_a_damaged_result_is_named(tmp_path: Path, content: str):
    Cells(tmp_path).get("x", {}, lambda: 1)
    next(tmp_path.glob("x-*.json")).write_text(content)
    with pytest.raises(StateError, match=r"x-.*\.json is damaged .*delete it to measure it again"):
        Cells(tmp_path).get("x", {}, lambda: 1)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("studies.experiments.cells.write_atomically", full)
    with pytest.raises(TrainingError, match="cannot be written: No space left on device; make room"):
        Cells(tmp_path).get("x", {}, lambda: 1)


def test_plain_gives_what_json_has():
    value = {"a": (1, np.int64(2)), 3: np.array([[True], [False]]), "inf": np.float64("inf")}
    found = plain(value)
    assert found == {"a": [1, 2], "3": [[True], [False]], "inf": None}
    json.dumps(found, allow_nan=False)
