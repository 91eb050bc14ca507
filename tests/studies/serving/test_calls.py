"""The number of functions that a small request and a refusal call, in HTTP's thread and in the engine's."""

import json
from typing import Any

from studies.serving.calls import own_files
from tests.processes import forked

MOST = {"HTTP": (220, 220), "engine": (80, 70)}
"""Python and C calls of a request of workload a."""

REFUSED = {"HTTP": (170, 165)}
"""Those of a refusal, in HTTP's thread."""


def _calls(workload: str, requests: int) -> dict[str, Any]:
    code = "from studies.serving.calls import main; main()"
    status, output = forked(code, workload, "--requests", str(requests), "--json")
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


def _counted(workload: str, requests: int, most: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Count up to three times: a machine that is busy wakes threads late, and they call some functions more."""
    calls: dict[str, Any] = {}
    for _ in range(3):
        calls = _calls(workload, requests)
        if all(calls[side]["python"] <= python and calls[side]["c"] <= c for side, (python, c) in most.items()):
            return calls
    raise AssertionError(calls)


def test_a_small_request_calls_no_more_than_it_did() -> None:
    calls = _counted("a", 320, MOST)
    assert len(own_files(calls)) <= 48, own_files(calls)


def test_a_refusal_calls_no_more_than_it_did() -> None:
    _counted("refused", 100, REFUSED)
