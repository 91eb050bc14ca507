"""The number of functions that a small request and a refusal call, in HTTP's thread and in the engine's."""

import json
import subprocess
import sys
from typing import Any

from studies.serving.calls import own_files
from tests.processes import ROOT

MOST = {"HTTP": (225, 225), "engine": (110, 120)}
"""Python and C calls of a request of workload a."""

REFUSED = (170, 165)
"""Those of a refusal, in HTTP's thread."""


def _calls(workload: str, requests: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "studies.serving.calls", workload, "--requests", str(requests), "--json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    return json.loads(printed.splitlines()[-1])


def test_a_small_request_calls_no_more_than_it_did() -> None:
    calls = _calls("a", 320)
    for side, (python, c) in MOST.items():
        assert calls[side]["python"] <= python, calls[side]["by_file"]
        assert calls[side]["c"] <= c, calls[side]["by_file"]
    assert len(own_files(calls)) <= 50, own_files(calls)


def test_a_refusal_calls_no_more_than_it_did() -> None:
    calls = _calls("refused", 100)["HTTP"]
    assert calls["python"] <= REFUSED[0], calls["by_file"]
    assert calls["c"] <= REFUSED[1], calls["by_file"]
