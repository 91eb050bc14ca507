"""The number of functions that a small request calls, in HTTP's thread and in the engine's."""

import json
import subprocess
import sys

from studies.serving.calls import own_files
from tests.processes import ROOT

MOST = {"HTTP": (520, 440), "engine": (110, 120)}
"""Python and C calls of a request of workload a."""


def test_a_small_request_calls_no_more_than_it_did() -> None:
    command = [sys.executable, "-m", "studies.serving.calls", "a", "--requests", "320", "--json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    calls = json.loads(printed.splitlines()[-1])
    for side, (python, c) in MOST.items():
        assert calls[side]["python"] <= python, calls[side]["by_file"]
        assert calls[side]["c"] <= c, calls[side]["by_file"]
    assert len(own_files(calls)) <= 48, own_files(calls)
