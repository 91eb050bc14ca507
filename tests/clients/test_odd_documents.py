"""Documents whose members are missing or have other types: every one is an error of the SDK, or a whole result."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pathline import Client, Comparison, Frontier, PathlineError, RetryPolicy
from pathline.cli import main

from tests.clients.conftest import JSON, SOLVERS, SSE, FakeService, event

ODD = (None, True, -1, 0, 1e308, 10**30, "", "x", [], [[]], {}, {"a": 1}, [None], ["x"], "9" * 50, [{"name": None}])
ARRAYS = (np.zeros((2, 0)), np.array(["a", "b"]), np.zeros(()), np.zeros((2, 3), complex), np.zeros((2, 3, 4)))
POINT = {
    "solver": "rk4-2",
    "nfe": 8.0,
    "nfe_most": 8,
    "p50": 0.1,
    "p95": 0.1,
    "p95_low": 0.1,
    "p95_high": 0.2,
    "worst": 0.4,
    "failed": 0,
    "best": True,
}
CURVE = {"guidance": None, "samples": 3, "seed": 1, "spread": 1.0, "complete": True, "points": [POINT]}
VERSION = {
    "version": 3,
    "event_shape": ["T", 2],
    "axes": {"T": {"min": 1, "max": 4}},
    "sampling": {"solver": "rk4-2"},
    "conditions": {"text": {"dtype": "float32", "shape": [2], "names": ["a"]}},
    "path": "fused",
}
DOCUMENTS: dict[str, Any] = {
    "/v1/models": {
        "models": [{"name": "moons", "version": 3, "event_shape": [2], "status": "served", "axes": {"T": {"max": 3}}}],
        "passed_over": [{"path": "a", "reason": "b"}],
        "training": [{"name": "x", "left_s": 3.0}],
    },
    "/v1/models/moons": {"name": "moons", "serving": 3, "served": [VERSION]},
    "/v1/models/moons/frontier": {
        "model": "moons",
        "version": 3,
        "checkpoint": "sha256:0",
        "reference": "dopri5",
        "conditions": "",
        "curves": [CURVE],
    },
    "/v1/load": {"accepts": True, "jobs": 1, "work": 1.0, "seconds": 2.0, "models": {}},
    "/v1/solvers": {"solvers": SOLVERS},
}


def changed(document: Any, chance: random.Random) -> Any:
    """Return a document with a member or two removed or replaced."""
    document, places = copy.deepcopy(document), list[tuple[Any, Any]]()

    def walk(part: Any) -> None:
        for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
            places.append((part, key))
            walk(value)

    walk(document)
    part, key = chance.choice(places)
    if chance.random() < 0.25:
        del part[key]
    else:
        part[key] = chance.choice(ODD)
    return document


def shown(result: Any) -> None:
    """Look at a result in every way."""
    _ = repr(result), str(result)
    for name in ("_repr_html_",) if isinstance(result, Frontier | Comparison) else ("describe", "_columns"):
        getattr(result, name, str)()


CALLS: dict[str, Callable[[Client, Path], Any]] = {
    "models": lambda client, _: [shown(model) for model in client.models()],
    "model": lambda client, _: shown(client.model("moons").axes),
    "frontier": lambda client, _: shown(client.frontier("moons")),
    "load": lambda client, _: shown(client.load()),
    "solvers": lambda client, _: shown(client.solvers()),
    "sample": lambda client, _: shown(client.sample("moons", 2, seed=1)),
    "stream": lambda client, _: [shown(event) for event in client.stream("moons", 2, seed=1)],
    "compare": lambda client, _: shown(client.compare("moons")),
    "bulk": lambda client, to: client.bulk(
        "moons", 70, to=to, seed=1, tries=1, shard_rows=64, conditions={"text": np.zeros((70, 2))}
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_odd_is_an_error_of_the_sdk(service: FakeService, tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    answer, refused = service.answer, 0

    def odd(method: str, path: str, headers: Any, body: bytes) -> Any:
        if path in DOCUMENTS and method == "GET":
            return 200, JSON, json.dumps(changed(DOCUMENTS[path], chance)).encode()
        status, sent, content = answer(method, path, headers, body)
        if sent != SSE:
            return status, sent, content
        events = [block.partition(b"\ndata: ") for block in content.split(b"\n\n")[:-1]]
        documents = [(head.decode().removeprefix("event: "), json.loads(data)) for head, _, data in events]
        return status, sent, b"".join(event(kind, changed(document, chance)) for kind, document in documents)

    def odd_answer(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        other = changed(meta, chance) if name != "bulk" or chance.random() < 0.3 else dict(meta)
        meta.clear()
        meta.update(other)
        if chance.random() < 0.2:
            arrays[chance.choice(list(arrays))] = chance.choice(ARRAYS)

    service.answer, service.change = odd, odd_answer  # type: ignore[method-assign]
    transport = httpx.MockTransport(service.handle)
    with Client("http://fake", retry=RetryPolicy(max_attempts=1), transport=transport) as client:
        for number in range(60):
            try:
                CALLS[name](client, tmp_path / str(number))
            except PathlineError as error:
                refused += bool(str(error))
    assert refused > 5


@pytest.mark.usefixtures("live")
def test_the_command_names_a_difference_of_which_little_is_said(
    service: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.change = lambda arrays, meta: meta.update(digest_matches=False, differences=[{"what": "\x1b[31mrows"}])
    service.replies = [service._sample({"model": "moons", "num_samples": 2, "seed": 1})]
    (tmp_path / "answer.json").write_text(json.dumps(dict.fromkeys(("model", "shape", "digest", "environment"), "x")))
    assert main(["replay", str(tmp_path / "answer.json")]) == 1
    error = capsys.readouterr().err
    assert "rows (None -> None)" in error
    assert "\x1b" not in error
