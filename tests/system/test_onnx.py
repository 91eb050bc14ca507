"""Networks without a fused form, evaluated by onnxruntime: the extra `onnx`, in an environment that builds on .venv."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "onnx" / "bin" / "python"
CHECK = Path(__file__).parent / "with_onnx" / "check.py"


def test_unets_and_programs_are_exported_and_keep_their_bits_in_any_company(tmp_path: Path) -> None:
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [PYTHON, CHECK, str(tmp_path / "repository")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in found] == ["labels", "vectors", "program"]
    for each in found:
        assert (each["path"], each["reason"], each["deterministic"]) == ("onnx", "", True), each
        assert (each["other_bits"], each["nan_alone"], each["same"]) == ([], True, [True, True, True]), each
        assert 0 < each["far"] < 1e-4, each
    assert len(list((tmp_path / "cache" / "onnx").glob("*.onnx"))) == 3
