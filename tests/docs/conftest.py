"""A real service with small models under the names that the examples use, and one process that runs all of them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from tests.processes import stop
from tests.service.serving import serving

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

# Each program has a namespace of its own, as if it ran alone; torch is imported once for all of them.
_RUNNER = """
import contextlib, io, json, sys, traceback
import matplotlib
matplotlib.use("Agg")
for name, code in json.load(open(sys.argv[1])).items():
    printed, failure = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
    except Exception:
        failure = traceback.format_exc()
    print(json.dumps([name, printed.getvalue(), failure]), flush=True)
"""


def blocks(page: Path, language: str = "python") -> list[str]:
    """Return the contents of a page's fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repository of the service."""
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    save(root, "moons", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


@pytest.fixture(scope="session")
def service(models_dir: Path) -> Iterator[str]:
    # Making a derivative ready takes time on a busy machine.
    with serving(models_dir, watch_s=0.2, timeout_s=300) as (url, process):
        yield url
        assert stop(process) == 0


@dataclass(frozen=True)
class Programs:
    """What the programs of the documentation printed, and the folder that they ran in."""

    folder: Path
    printed: dict[str, str]
    failures: dict[str, str]


@pytest.fixture(scope="session")
def programs(service: str, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Run the Python blocks of every page, of the README and of the notebook, as a user would in one session."""
    folder = tmp_path_factory.mktemp("programs")
    code = {page.name: "\n".join(blocks(page)) for page in PAGES if page.name != "tutorial.md" and blocks(page)}
    code |= {f"README {i}": block for i, block in enumerate(blocks(ROOT / "README.md"))}
    cells = json.loads((ROOT / "examples" / "solvers.ipynb").read_text("utf-8"))["cells"]
    code["notebook"] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (folder / "programs.json").write_text(json.dumps(code))
    environment = {**os.environ, "PATHLINE_URL": service, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _RUNNER, "programs.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name for name, _, _ in results} == set(code), done.stderr
    return Programs(folder, {n: out for n, out, _ in results}, {n: why for n, _, why in results if why})
