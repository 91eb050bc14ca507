"""Promises hold on fresh noise: of three models and three budgets each, at least 95 % of samples are within them.

`python -m studies.promises` counts the same on trained models and 10,000 samples.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.network import Network
from selection.measure import measure
from studies.promises import kept

SOLVERS = tuple(f"{name}-{steps}" for name in ("ab2", "ab4", "rk4") for steps in (2, 3, 4, 6, 8, 12, 16, 24, 32))


def network() -> nn.Module:
    torch.manual_seed(0)
    mlp = ResidualMLP(ResidualMLPConfig(dim=6, hidden=16, blocks=2, time_width=8, max_frequency=3))
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.35)
    return mlp


@pytest.mark.parametrize(
    ("name", "velocity", "width", "dtype"),
    [("gaussian", Gaussian(), 2, torch.float64), ("mixture", Mixture(), 2, torch.float64),
     ("network", network(), 6, torch.float32)],
)  # fmt: skip
def test_at_least_95_percent_of_fresh_samples_are_within_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, velocity: Network[Any], width: int, dtype: torch.dtype
) -> None:
    folder = save(
        tmp_path, name, velocity, Decoder.identity((width,)), dataset={}, training={}, seed=0, dtype=dtype
    )  # fmt: skip
    monkeypatch.setattr("selection.measure.candidates", lambda *_: iter(SOLVERS))
    measure(load(folder), seconds=1e9).write(folder)
    rows = kept(folder, (0.3, 0.1, 0.03), 1000)
    assert len(rows) == 3
    for row in rows:
        assert row.within >= 0.95 * row.samples, row
        assert row.promised <= row.budget
