"""Replay tokens, given on the command line or stored in a file of samples."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = "plr"


def tokens_in(text: str) -> list[str]:
    """Return the tokens given by an argument: the argument itself, or those in the file that it names.

    Args:
        text: A token, or the path of a file: .json or .npz as `pathline sample` writes them, or the token as text.

    Raises:
        ValueError: It is neither.
        OSError: The file cannot be read.
    """
    if text.startswith(PREFIX) and "." in text and Path(text).suffix.lower() not in (".json", ".npz", ".txt"):
        return [text]
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"{text!r} is neither a replay token, which begins with plr1., nor a file")
    try:
        found = _in_file(path)
    except (ValueError, KeyError, zipfile.BadZipFile):
        raise ValueError(f"{text}: holds no replay token; give a .json or .npz file that pathline wrote") from None
    tokens = found if isinstance(found, list) else [found]
    if not tokens or not all(isinstance(token, str) and token for token in tokens):
        raise ValueError(f"{text}: holds no replay token; was it written by an older version?")
    return tokens


def _in_file(path: Path) -> Any:
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return json.loads(archive["meta"].tobytes()).get("replay")
    content = path.read_text("utf-8").strip()
    return content if content.startswith(PREFIX) else json.loads(content)["replay"]
