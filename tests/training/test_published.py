"""Published models with cards that are damaged or not files."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from studies.experiments.trained import training_seconds
from training import folders

GOOD = {"training": {"recipe_hash": "abc", "recipe": {"epochs": 1}, "train_s": 2.0}}

SPOILT: dict[str, Callable[[Path], object]] = {
    "deep lists": lambda card: card.write_text("[" * 100_000 + "]" * 100_000),
    "deep objects": lambda card: card.write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a pipe": os.mkfifo,
    "a device": lambda card: card.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "no object": lambda card: card.write_text("[]"),
    "no training": lambda card: card.write_text(json.dumps({"training": ["abc"]})),
    "no text": lambda card: card.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_card_is_passed_over(tmp_path: Path, kind: str) -> None:
    for version in "12":
        (tmp_path / "net" / version).mkdir(parents=True)
    (tmp_path / "net" / "1" / "card.json").write_text(json.dumps(GOOD))
    SPOILT[kind](tmp_path / "net" / "2" / "card.json")
    assert folders.recorded(tmp_path / "net" / "2" / "card.json") == {}
    assert folders.find(tmp_path, "net", "abc") == tmp_path / "net" / "1"
    assert training_seconds(tmp_path) == 2.0
