"""Earlier responses, to be sent back for a replay: results, documents, and the files that have them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathline._results import SampleResult
from pathline.errors import InvalidValue

Replayable = SampleResult | Mapping[str, Any] | str | os.PathLike[str]
"""A result, the document of a response, or the path of a file of samples."""

_MEMBERS = (
    *("model", "version", "checkpoint", "solver", "seed", "first_index", "shape", "status", "saved", "request"),
    *("environment", "digest"),
)


def answer_of(answer: Replayable) -> dict[str, Any]:
    """Return what a replay needs of an earlier response.

    Raises:
        InvalidValue: It lacks something, or a file has several pages.
        OSError: The file cannot be read.
    """
    if isinstance(answer, SampleResult):
        times = {} if answer.saved_t is None else {"saved_t": answer.saved_t.tolist()}
        return _members({**answer.describe(), **times}, "the result")
    if isinstance(answer, Mapping):
        return _members(answer, "the document")
    answers = answers_in(Path(answer))
    if len(answers) > 1:
        raise InvalidValue(
            f"{answer}: has {len(answers)} pages; use `pathline replay`, which replays them all", "answer"
        )
    return answers[0]


def answers_in(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return what a replay needs of the responses in a file: one, or one for each page.

    Args:
        path: A .json or .npz file that Pathline wrote, or a response of the service in one of these formats.

    Raises:
        InvalidValue: It is no such file.
        OSError: The file cannot be read.
    """
    if not Path(path).is_file():
        raise InvalidValue(f"{os.fspath(path)}: there is no such file", "answer")
    try:
        if Path(path).suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                document = json.loads(archive["meta"].tobytes())
                if "saved_t" in archive:
                    document["saved_t"] = archive["saved_t"].tolist()
        else:
            document = json.loads(Path(path).read_text("utf-8"))
        pages = document.get("pages", [{}])
        return [_members({**document, **page}, os.fspath(path)) for page in pages]
    except (InvalidValue, OSError):
        raise
    except Exception:  # a damaged archive can raise anything
        message = f"{os.fspath(path)}: is no response; give a .json or .npz file of samples that Pathline wrote"
        raise InvalidValue(message, "answer") from None


def _members(document: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the members that a replay needs, the times of saved states without the states."""
    members = {name: document[name] for name in _MEMBERS if name in document}
    lacking = [name for name in ("model", "shape", "digest", "environment") if name not in members]
    if lacking:
        raise InvalidValue(
            f"{what}: has no {lacking[0]}; give the whole response, only its samples may be missing", "answer"
        )
    saved = members.pop("saved", None)
    times = saved.get("t") if isinstance(saved, Mapping) else document.get("saved_t")
    return members if times is None else {**members, "saved": {"t": times}}
