from pathlib import Path

import pytest

from models.architectures.analytic import Gaussian
from models.checkpoint.bound import BoundFileError, add_to_report, read_report
from models.checkpoint.card import read_card
from models.checkpoint.saving import save
from models.decoder import Decoder


def saved(folder: Path) -> Path:
    return save(folder, "exact", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0)


def test_a_part_replaces_the_one_before_and_keeps_the_rest_and_the_card(tmp_path: Path):
    folder = saved(tmp_path)
    card = read_card(folder)
    assert read_report(folder, card) == {}
    add_to_report(folder, card, {"price": {"a": 1}, "quality": {"swd": 0.5}})
    assert add_to_report(folder, card, {"price": {"b": [2, None]}}).name == "report.json"
    assert read_report(folder, card) == {"price": {"b": [2, None]}, "quality": {"swd": 0.5}}
    assert read_card(folder) == card


def test_a_report_of_other_weights_is_refused_and_replaced(tmp_path: Path):
    folder = saved(tmp_path)
    card = read_card(folder)
    add_to_report(folder, card.model_copy(update={"weights_sha256": "0" * 64}), {"price": 1})
    with pytest.raises(BoundFileError, match=r"report\.json: belongs to other weights"):
        read_report(folder, card)
    add_to_report(folder, card, {"quality": 2})
    assert read_report(folder, card) == {"quality": 2}
