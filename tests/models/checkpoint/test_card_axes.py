"""Free axes in cards: their validation, and that cards without them keep their bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.card import CARD_FILE, CheckpointError, read_card

from ...service.free import mel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("free")
    return mel(root, root / "repository")[1]


def changed(folder: Path, target: Path, **fields: Any) -> Path:
    content = {**json.loads((folder / CARD_FILE).read_text()), **fields, "card_sha256": None}
    (target / CARD_FILE).write_text(json.dumps(content))
    return target


def test_a_card_says_axes_and_noise(folder: Path) -> None:
    content = json.loads((folder / CARD_FILE).read_text())
    assert content["event_shape"] == content["data_shape"] == content["decoder"]["event_shape"] == [3, "T"]
    assert content["axes"] == {"T": {"max": 40, "min": 4, "multiple": 2}}
    assert content["conditions"]["mu"]["max"] == {"T": 40}
    assert content["noise"] == "philox-ndtri-free-v1"
    card = read_card(folder)
    assert card.event_of({"T": 12}) == card.data_of({"T": 12}) == (3, 12)
    assert card.typical == {"T": 8}
    assert card.to_json() == (folder / CARD_FILE).read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"axes": {}}, "axes has no 'T'"),
        ({"axes": {"T": {"max": 40}, "K": {"max": 3}}}, "axes has 'K', which no shape has"),
        ({"axes": {"T": {"max": 30}}}, "the max of T is 40 in condition 'mu', but 30 in axes"),
        ({"axes": {"T": {"max": 1 << 26}}}, "may hold more than"),
        ({"axes": {"T": {"max": 4, "min": 5}}}, "no multiple of 1 is from 5 to 4"),
        ({"noise": "philox-ndtri-v1"}, "needs philox-ndtri-free-v1"),
        ({"event_shape": [3, "N"]}, "that of the decoder"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_card(changed(folder, tmp_path, **fields))
