"""The example with the real lerobot: its Diffusion Policy, image encoder included, is served as lerobot samples it.

lerobot requires an older torch, so it has its own environment, which `make test-system` creates.
"""

import subprocess
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "lerobot" / "bin" / "python"
HERE = Path(__file__).parent / "with_lerobot"


def test_its_policy_answers_as_its_own_loop_does(tmp_path: Path) -> None:
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    paths = f"{ROOT}:{ROOT / 'examples'}"  # not that of tests: a package of this environment has that name, too
    environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    command = [PYTHON, HERE / "compare.py", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the same\n")
