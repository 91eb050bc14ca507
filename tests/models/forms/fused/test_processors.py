"""A fused network has the same bits on every kind of processor: code for other kinds is compiled and run here."""

import contextlib
import io
import os
import platform
import subprocess
import sys
from pathlib import Path

OLDER = {"x86_64": ("haswell", "+avx2,+fma"), "aarch64": ("cortex-a53", "+neon")}
"""Older processors by machine, with narrower registers; newer ones of the same kind run their code."""

_CODE = """
import torch
from models.forms.fused.residual_mlp import FusedResidualMLP
from models.noise import noise
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig

torch.manual_seed(0)
network = FusedResidualMLP(ResidualMLP(ResidualMLPConfig(dim=2, hidden=72, blocks=2)).requires_grad_(False))
print(network(noise(0, 0, 40, (2,)), torch.linspace(0, 1, 40)).numpy().tobytes().hex())
"""


def test_an_older_processor_gives_the_same_bits() -> None:
    name, features = OLDER[{"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())]
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features},
        capture_output=True,
        text=True,
        check=True,
    )
    own = io.StringIO()
    with contextlib.redirect_stdout(own):
        exec(_CODE, {})  # noqa: S102
    assert done.stdout == own.getvalue() != ""
